"""What activation needs only in unusual environments: no HOME, exported variables, slots, network file
systems.

A part of home.py that lies apart, because whatever is in home.py costs every start of Python.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from cachehome.families import Family

# Where tempfile looks.
_TMP = ("/tmp", "/var/tmp", "/usr/tmp")  # noqa: S108
_SURVIVES_REBOOT = "/var/tmp"  # noqa: S108 - what is made there is checked


def candidates(environ: "Mapping[str, str]") -> list[tuple[str, str]]:
    """The cache directory of another platform, or of a user without HOME."""
    source = "the platform's cache directory"
    if sys.platform in ("darwin", "win32"):
        try:
            import platformdirs

            path = platformdirs.user_cache_dir()
        except ImportError:
            path = os.path.expanduser("~/Library/Caches")
            if sys.platform == "win32":
                path = environ.get("LOCALAPPDATA", "").strip()
    else:
        source = "the passwd entry, since HOME is not set"
        try:
            import pwd

            path = os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".cache")
        except (ImportError, KeyError, OSError):
            return []
    return [(os.path.normpath(path), source)] if os.path.isabs(path) else []


def slot(template: str, environ: "Mapping[str, str]") -> tuple[str, str]:
    """The name of this worker's own directory; empty, and why, if it shares the common one."""
    from cachehome.home import plain

    try:
        name = template.format_map(environ)
    except KeyError as error:
        return "", f"slot {template!r}: {error.args[0]} is not set, so the shared directory is used"
    except (ValueError, AttributeError, IndexError, TypeError):
        return "", f"slot {template!r} is not a text with {{NAME}} fields: ignored"
    if name.strip(".") and len(name) < 200 and plain(name) == name:
        return name, ""
    return "", f"slot {name!r} is not a plain name (letters, digits, dots, dashes): ignored"


def mount_type(path: str, table: str) -> str:
    """The type of the file system that *path* (without links) lies on, from the text of /proc/self/mounts."""
    path = path.rstrip("/") + "/"
    longest, kind = -1, ""
    for line in table.split("\n"):
        fields = line.split(" ", 3)
        if len(fields) < 4:
            continue
        point = fields[1]
        if "\\" in point:
            for escape, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
                point = point.replace(escape, letter)
        # Of several mounts on one point the last one is seen.
        if len(point) >= longest and path.startswith(point.rstrip("/") + "/"):
            longest, kind = len(point), fields[2]
    return kind


def private_local(chosen: str = "", *, make: bool = False) -> tuple[str | None, str]:
    """The private directory on local disk, or None and why there is none.

    It is *chosen* (CACHEHOME_LOCAL), or `cachehome-<uid>` in it where it is not ours alone; else
    `/var/tmp/cachehome-<uid>`. Whoever can write there runs code here: it must be a directory, ours, of mode
    0700. *make* makes it.
    """
    from cachehome import home

    if not hasattr(os, "geteuid"):
        return None, "there is no private directory on this platform"
    user = os.geteuid()
    own = os.path.join(chosen or _SURVIVES_REBOOT, f"{home.NAME}-{user}")
    why = ""
    for place in (chosen, own) if chosen else (own,):
        if make:
            try:
                os.mkdir(place, 0o700)
            except OSError:
                pass  # it is there, or the next lines say what is wrong
        try:
            found = os.lstat(place)
        except OSError as error:
            why = why or f"{place}: {error.strerror}"
            continue
        if found.st_mode & 0o170777 == 0o040700 and found.st_uid == user:
            fault = home.unusable(place) or home.unsuitable(place)
            return (None, f"{place}: {fault}") if fault else (place, "")
        why = f"{place} is not a directory of mode 0700 of user {user}"
    return None, why


def torch_default(
    family: "Family",
    above: "Family | None",
    value: str,
    environ: "Mapping[str, str]",
    record: "Mapping[str, str]",
) -> bool:
    """Whether torch itself wrote *value* into the environment, where nobody had chosen one."""
    if family.name == "inductor":
        return _inductor_default(value, environ)
    # `<it>/triton/<device>`, at the first kernel of Inductor's.
    for directory in (environ.get(above.variable), record.get(above.variable)) if above else ():
        if above and directory:
            place = directory + family.subdirectory[len(above.subdirectory) :]
            if value == place or (value.startswith(place + "/") and value[len(place) + 1 :].isdigit()):
                return True
    return False


def _inductor_default(value: str, environ: "Mapping[str, str]") -> bool:
    """`<tmp>/torchinductor_<user>`, at the import of torch._dynamo."""
    parent, name = os.path.split(value)
    if not name.startswith("torchinductor_"):
        return False
    users = [environ.get(variable, "") for variable in ("LOGNAME", "USER", "LNAME", "USERNAME")]
    try:
        import pwd

        users.append(f"uid_{os.getuid()}")
        users.append(pwd.getpwuid(os.getuid()).pw_name)
    except (ImportError, KeyError, OSError):
        pass
    names = ["".join("_" if letter in '\\/:*?"<>|' else letter for letter in user) for user in users if user]
    places = [*_TMP, *(environ[variable] for variable in ("TMPDIR", "TEMP", "TMP") if environ.get(variable))]
    return name[len("torchinductor_") :] in names and parent in map(os.path.normpath, places)


def absolute(variable: str, value: str) -> tuple[str, str]:
    """The user's *value* made absolute, and a note: a compiler with another working directory would look
    elsewhere.
    """
    if os.path.isabs(value):
        return value, ""
    try:
        path = os.path.abspath(value)
    except OSError:
        return value, f"{variable}: {value!r} is relative and the working directory is gone: left as it is"
    tilde = ", since nobody expands a quoted ~" if value.startswith("~") else ""
    return path, f"{variable}: {value!r} is relative, so it is {path}{tilde}"
