"""`cachehome status`: what is live, by whom, how large; what the hook does; what is wrong with the settings."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import cachehome
from cachehome import early, home, switch
from cachehome.commands import activation, output
from cachehome.settings import SECTION, Settings

DESCRIPTION = "Say where the compile caches of this environment lie, who said so, how large they are."
SETTINGS = ("families", "local", "slot", "slim")
LENIENT = True
NO_HOOK = f"not installed for {sys.executable}: use `import cachehome.activate` or `cachehome env`"


def arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def run(args: argparse.Namespace, settings: Settings) -> int:
    document = status(settings)
    if args.json:
        output.as_json(document)
    else:
        output.lines(*_text(document))
    return 0


def status(settings: Settings) -> dict[str, Any]:
    """The facts, with stable names."""
    answer = activation.resolution(settings)
    rows = activation.chosen(settings, [])
    wanted, asked_by, _ = home.wish(os.environ)
    return {
        "active": {
            "on": bool(wanted) and not answer.off,
            "wish": wanted,
            "by": asked_by,
            "told": os.environ.get("CACHEHOME", ""),
        },
        "hook": {"installed": switch.hooked(), "ran": cachehome.hook_ran, "switch": switch.read()},
        "config": {"file": settings.file or None, "unread": list(settings.unread)},
        "root": answer.root,
        "source": answer.source,
        "reason": answer.reason,
        "host_tag": answer.tag,
        "slot": answer.slot,
        "live": answer.live,
        "families": {
            row.name: {
                "variable": row.variable,
                "directory": answer.directories.get(row.name),
                "set_by": activation.set_by(row.variable, answer),
                **_size(answer.directories.get(row.name), set(answer.directories.values())),
            }
            for row in rows
        },
        "builds": _builds(answer),
        "skipped": [{"what": what, "why": why} for what, why in _skipped(settings, answer)],
        "slim": _slim(settings),
        "too_late": early.too_late(),
        "notes": [
            *answer.notes,
            *home.warnings(answer),
            *_nameless(),
            *_unknown_cpu(answer.tag),
            *_out_of_reach(settings),
            *_unread(settings),
        ],
        "problems": [str(problem) for problem in settings.problems],
    }


def _skipped(settings: Settings, answer: home.Resolution) -> list[tuple[str, str]]:
    """The candidates that were passed over. Once the hook has run its answer is kept, so that they are looked for
    anew."""
    ours = home.applied(os.environ)
    if answer.skipped or not ours:
        return list(answer.skipped)
    names = {home.APPLIED, *(name for name, value in ours.items() if os.environ.get(name) == value)}
    return list(activation.resolution(settings, without=names).skipped)


def _out_of_reach(settings: Settings) -> list[str]:
    """What a file says that only a variable can say to the hook."""
    source = settings.origin.get("enabled", "")
    if not settings.enabled or source in ("", "default", "CACHEHOME") or source.startswith("--"):
        return []
    return [
        f"enabled (from {source}) does not reach the hook, which reads no file: export CACHEHOME=1, or `enable`"
    ]


def _unread(settings: Settings) -> list[str]:
    """What of the configuration file nobody reads."""
    if not settings.unread:
        return []
    return [
        f"{settings.file}: nobody reads {', '.join(settings.unread)}: settings lie in the section [{SECTION}]"
    ]


def _slim(settings: Settings) -> dict[str, str]:
    """What is asked for, and what `run` and a Session in this Python make of it."""
    means = settings.slim
    if means == "auto":
        means = "restore" if switch.hooked() else "off"
    return {"setting": settings.slim, "run": means}


def _size(directory: str | None, all_of_them: set[str]) -> dict[str, Any]:
    """Files and bytes below *directory*, without what belongs to another family or to our bookkeeping."""
    files = size = 0
    stack = [directory] if directory else []
    nested = all_of_them - {directory}
    while stack:
        try:
            with os.scandir(stack.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.path not in nested and entry.name != ".cachehome":
                            stack.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        files += 1
                        size += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue  # not there, not ours, or gone meanwhile
    return {"exists": bool(directory) and os.path.isdir(directory or ""), "files": files, "bytes": size}


def _builds(answer: home.Resolution) -> list[dict[str, Any]]:
    """The directories of `run`, sessions and agents: each build has its own, which the hook knows nothing of."""
    from cachehome.lifecycle.builds import builds

    found = []
    for one in builds(answer.root, answer.tag):
        every = set(one.families.values())
        sizes = [_size(path, every) for path in every]
        files, size = (sum(part[key] for part in sizes) for key in ("files", "bytes"))
        facts = {"build": one.build, "profile": one.profile, "slot": one.slot, "directory": one.directory}
        found.append(
            {**facts, "files": files, "bytes": size, "unpublished": one.unpublished, "publish": one.command}
        )
    return found


def _nameless() -> list[str]:
    """torch before 2.13 asks for the user's name when it is imported, and fails where there is none."""
    import getpass

    try:
        getpass.getuser()
    except (KeyError, OSError, ImportError):
        version = home.torch_version().split(".")
        if version[:1] == ["2"] and version[1:2] and version[1].isdigit() and int(version[1]) < 13:
            user = os.getuid()
            return [
                f"user {user} has no name, without which torch {'.'.join(version)} fails: export LOGNAME=u{user}"
            ]
    return []


def _unknown_cpu(tag: str) -> list[str]:
    if "-00000000" not in tag:
        return []
    return ["nothing tells the features of this CPU: do not share this home with another machine"]


def _text(document: dict[str, Any]) -> list[str]:
    active, hook = document["active"], document["hook"]
    if active["on"]:
        state = (
            f"on, by {active['by']}={active['wish']}"
            if active["by"] == "CACHEHOME"
            else f"on, by {active['by']}"
        )
    else:
        why = f"{active['told']!r} means nothing" if active["told"].strip() else "is not set"
        state = (
            f"off, by {active['by']}" if active["wish"] else f"off (CACHEHOME {why}): the hook sets nothing"
        )
    places = [os.path.join(site, switch.HOOK) for site in hook["installed"]]
    if not places:
        installed = NO_HOOK
    else:
        ran = "ran in this process" if hook["ran"] else "runs where a variable of CACHEHOME's is set"
        installed = f"{', '.join(places)} ({ran})"
    lines = [
        f"activation  {state}",
        f"hook        {installed}",
        f"host tag    {document['host_tag']}",
        f"root        {document['root'] or 'none'}: {document['reason']}",
    ]
    if document["config"]["file"]:
        lines.append(f"config      {document['config']['file']}")
    if document["live"]:
        lines.append(f"live        {document['live']}")
    for name, row in document["families"].items():
        place = row["directory"] or "torch's own default"
        size = f"{row['files']} files, {output.size(row['bytes'])}" if row["exists"] else "not made yet"
        who = {"nobody": "not set", "torch": "set by torch itself"}.get(
            row["set_by"], f"set by {row['set_by']}"
        )
        lines.append(
            f"{name:11} {place}  ({size if row['directory'] else 'not ours'}; {row['variable']} {who})"
        )
    slim = document["slim"]
    if slim["setting"] == "auto":
        why = "the hook is installed" if slim["run"] == "restore" else "the hook is not installed"
        lines.append(f"slim        auto: {slim['run']} under `run` and in a Session, since {why}; else off")
    else:
        lines.append(f"slim        {slim['setting']}")
    lines += [f"skipped     {skipped['what']}: {skipped['why']}" for skipped in document["skipped"]]
    if document["too_late"]:
        lines.append(f"too late    {document['too_late']}")
    for one in document["builds"]:
        what = f"{one['build'][:8]}/{one['profile'][:16]}" + (f", {one['slot']}" if one["slot"] else "")
        left = f"; {one['unpublished']} entries to publish: {one['publish']}" if one["unpublished"] else ""
        size = f"{one['files']} files, {output.size(one['bytes'])}"
        lines.append(f"build       {one['directory']} ({what}): {size}{left}")
    lines += [f"note        {note}" for note in document["notes"]]
    lines += [f"setting     {problem}" for problem in document["problems"]]
    return lines
