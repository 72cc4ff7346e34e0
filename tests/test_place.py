"""Candidates, what stands against a place, and the host tag."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cachehome
from cachehome import home, host, place

root_only = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root")


# --- candidates ---


@pytest.mark.parametrize("blank", ["", " ", "\t"])
def test_blank_is_unset(tmp_path: Path, blank: str) -> None:
    environ = {"XDG_CACHE_HOME": blank, "HOME": str(tmp_path)}
    assert home.user_cache_dir(environ) == str(tmp_path / ".cache")


@pytest.mark.parametrize("value", ["rel/here", "~/.cache", "~", ".", "s3://bucket/x", "$HOME/x"])
def test_a_relative_xdg_cache_home_is_ignored(
    tmp_path: Path, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert home.user_cache_dir({"XDG_CACHE_HOME": value, "HOME": str(tmp_path)}) == str(tmp_path / ".cache")
    assert os.listdir(tmp_path) == []


def test_xdg_cache_home_wins(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path / "x" / ".." / "y") + "/", "HOME": str(tmp_path)}
    assert home.user_cache_dir(environ) == str(tmp_path / "y")


def test_an_unusable_xdg_cache_home_falls_to_home(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environ = {"XDG_CACHE_HOME": str(tmp_path / "file" / "x"), "HOME": str(tmp_path)}
    assert home.user_cache_dir(environ) == str(tmp_path / ".cache")


@pytest.mark.parametrize("environ", [{}, {"HOME": ""}, {"HOME": " "}, {"HOME": "rel"}, {"HOME": "~"}])
def test_without_home_the_passwd_entry(environ: dict[str, str]) -> None:
    import pwd

    try:
        directory = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        pytest.skip("this user has no passwd entry")
    expected = os.path.join(directory, ".cache")
    assert place.candidates(environ)[0][0] == expected
    assert home.user_cache_dir(environ) in (expected, None)


def test_home_set_but_unusable_is_no_reason_for_the_passwd_entry(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert home.user_cache_dir({"HOME": str(tmp_path / "file")}) is None


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_platforms_ask_platformdirs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str
) -> None:
    platformdirs = pytest.importorskip("platformdirs")
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda: str(tmp_path / "Caches"))
    assert home.user_cache_dir({"HOME": "/elsewhere"}) == str(tmp_path / "Caches")
    # An absolute XDG_CACHE_HOME is a wish on any platform.
    assert home.user_cache_dir({"XDG_CACHE_HOME": str(tmp_path)}) == str(tmp_path)


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_platforms_without_platformdirs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, platform: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    monkeypatch.setenv("HOME", str(tmp_path))
    found = place.candidates({"LOCALAPPDATA": str(tmp_path / "Local")})
    expected = tmp_path / "Library" / "Caches" if platform == "darwin" else tmp_path / "Local"
    assert found == [(str(expected), "the platform's cache directory")]


# --- what stands against a place ---


def test_nothing_stands_against_a_plain_directory(tmp_path: Path) -> None:
    assert home.examine(str(tmp_path / "a" / "b")) == ("", "")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "name", ["a b", "a'b", 'a"b', "a\\b", "a\tb", "a\nb", "a\u00a0b", "a\udcffb", "a\x7fb"]
)
def test_names_that_break_a_compilers_command_line(tmp_path: Path, name: str) -> None:
    kind, why = home.examine(str(tmp_path / name))
    assert kind == "name"
    assert "blank, a quote or a backslash" in why


@pytest.mark.parametrize(
    "name", ["é", "日本", "a$b", "a;b", "a&b", "a(b)", "a*b", "a=b", "a,b", "a#b", "a%b", "-ab", "a:b"]
)
def test_names_that_compile(tmp_path: Path, name: str) -> None:
    assert home.examine(str(tmp_path / name)) == ("", "")


def test_too_long_a_name(tmp_path: Path) -> None:
    assert home.examine(str(tmp_path) + "/x" * 2000)[0] == "name"
    kind, why = home.examine(str(tmp_path / ("x" * 300)))
    assert (kind, "name too long" in why.lower()) == ("unusable", True)


def test_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert home.examine(str(tmp_path / "file" / "a" / "b")) == (
        "unusable",
        f"{tmp_path}/file is not a directory",
    )
    assert home.examine(str(tmp_path / "file")) == ("unusable", f"{tmp_path}/file is not a directory")


def test_links(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "good").symlink_to("real")
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    assert home.examine(str(tmp_path / "good" / "x")) == ("", "")
    assert home.examine(str(tmp_path / "gone" / "x"))[1] == f"{tmp_path}/gone is a link to nowhere"
    assert home.examine(str(tmp_path / "loop" / "x"))[0] == "unusable"


def test_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cachehome, "ROOM_BYTES", 1 << 60)
    kind, why = home.examine(str(tmp_path))
    assert (kind, "too little room" in why) == ("room", True)


@root_only
def test_another_users_directory_is_not_for_root(tmp_path: Path) -> None:
    directory = tmp_path / "theirs"
    directory.mkdir()
    os.chown(directory, 12345, 12345)
    assert "belongs to user 12345" in home.examine(str(directory / ".cache"), foreign=False)[1]
    assert home.examine(str(directory / ".cache")) == ("", "")  # an explicit root is used as told
    assert home.user_cache_dir({"HOME": str(directory)}) is None
    directory.chmod(0o1777)
    assert home.examine(str(directory / "mine"), foreign=False) == ("", "")


MOUNTS = """\
/dev/vda / ext4 rw 0 0
proc /proc proc rw 0 0
server:/home /home nfs4 rw 0 0
/dev/vdb /home/local xfs rw 0 0
weka /mnt/my\\040data wekafs rw 0 0
mountpoint-s3 /bucket fuse rw 0 0
gcsfuse /gcs fuse.gcsfuse rw 0 0
overlay /merged fuse.fuse-overlayfs rw 0 0
/dev/sda1 /ntfs fuseblk rw 0 0
server:/x /over nfs rw 0 0
tmpfs /over tmpfs rw 0 0
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", None),
        ("/home", "nfs4"),
        ("/home/u/.cache", "nfs4"),
        ("/homes/u", None),
        ("/home/local/u", None),
        ("/mnt/my data/x", "wekafs"),
        ("/bucket/x", "fuse"),
        ("/gcs", "fuse.gcsfuse"),
        ("/merged/x", None),
        ("/ntfs/x", None),
        ("/over/x", None),
    ],
)
def test_network_mount(tmp_path: Path, path: str, kind: str | None) -> None:
    table = tmp_path / "mounts"
    table.write_text(MOUNTS)
    assert place.network_mount(path, str(table)) == kind


def test_network_mount_without_a_table(tmp_path: Path) -> None:
    assert place.network_mount("/home", str(tmp_path / "none")) is None


def test_network_mount_follows_links(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "link").symlink_to("net")
    table = tmp_path / "mounts"
    table.write_text(f"/dev/vda / ext4 rw 0 0\ns:/x {os.path.realpath(tmp_path)}/net nfs rw 0 0\n")
    assert place.network_mount(str(tmp_path / "link" / "deep" / "er"), str(table)) == "nfs"


# --- the host tag ---


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", 0xCBF29CE484222325),
        (b"a", 0xAF63DC4C8601EC8C),
        (b"foobar", 0x85944171F73967E8),
        (b"chongo was here!\n", 0x46810940EFF5F915),
    ],
)
def test_fnv1a(data: bytes, value: int) -> None:
    assert place.fnv1a(data) == value


def modalias(tmp_path: Path, *numbers: str) -> str:
    file = tmp_path / "modalias"
    file.write_text(f"cpu:type:x86,ven0000fam0006mod00A7:feature:,{','.join(numbers)}\n")
    return str(file)


x86_only = pytest.mark.skipif(place.machine() != "x86_64", reason="needs an x86")


@x86_only
def test_the_class_of_known_features_is_frozen(tmp_path: Path) -> None:
    # A change here moves every live directory there is.
    assert place.cpu_class("") == "00000000"
    assert place.cpu_class("x86:1") == "75aeff68"
    assert place.cpu_features(modalias(tmp_path, "0019", "009C", "0125")) == "x86:2000080008000000000"


@x86_only
def test_only_instructions_count(tmp_path: Path) -> None:
    plain = place.cpu_features(modalias(tmp_path, "0019", "0125"))
    # A kernel's own words, a mitigation, an unnamed bit: none of them is an instruction.
    assert (
        place.cpu_features(modalias(tmp_path, "0019", "0068", "00E1", "0125", "024A", "025D", "000A"))
        == plain
    )
    assert place.cpu_features(modalias(tmp_path, "0019", "0125", "0130")) != plain
    assert place.cpu_features(modalias(tmp_path, "0019")) != plain


def test_the_two_lists_of_features_are_one() -> None:
    assert place.FEATURES.decode().split() == sorted(host.numbers().values())
    assert {int(number, 16) // 32 for number in place.FEATURES.split()} == {0, 1, 4, 6, 9, 12, 16, 18}


@x86_only
@pytest.mark.skipif(not os.path.exists("/sys/devices/system/cpu/modalias"), reason="needs sysfs")
def test_two_sources_agree_on_this_machine() -> None:
    assert place.cpu_features() == host.features("x86_64") != ""
    assert place.cpu_features("/none") == place.cpu_features()


def test_cpuinfo(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(
        "processor\t: 0\nflags\t\t: fpu sse avx2 md_clear made_up\nprocessor\t: 1\nflags\t\t: amx_tile\n"
    )
    assert host.from_cpuinfo(str(file)) == {b"0000", b"0019", b"0125"}
    assert host.features("x86_64", str(file)).startswith("x86:")
    assert host.features("x86_64", str(tmp_path / "none")) == ""


def test_hwcaps(tmp_path: Path) -> None:
    file = tmp_path / "auxv"
    pairs = [(16, 0b1111_1111_1111), (26, 0x10), (3, 99), (0, 0)]
    file.write_bytes(b"".join(number.to_bytes(8, sys.byteorder) for pair in pairs for number in pair))
    # evtstrm and cpuid, bits 2 and 11, are the kernel's own.
    assert host.hwcaps("aarch64", str(file)) == "7fb,10,0"
    assert host.hwcaps("ppc64le", str(file)) == "fff,10,0"
    assert host.features("aarch64", auxv=str(file)) == "7fb,10,0"
    assert host.hwcaps("aarch64", str(tmp_path / "none")) == ""


def test_host_tag_has_two_levels() -> None:
    first, second = place.host_tag({}).split("/")
    abi, machine, cpu = first.split("-")
    assert abi.startswith(
        f"cp{sys.version_info[0]}{sys.version_info[1]}" if sys.implementation.name == "cpython" else "pp"
    )
    assert machine == os.uname().machine
    assert len(cpu) == 8
    assert int(cpu, 16)
    assert second == f"torch-{place.torch_version()}"


@pytest.mark.parametrize(
    ("value", "suffix"), [("", ""), (" ", ""), ("avx2", "-avx2"), ("AVX2", "-avx2"), ("../x y", "-.._x_y")]
)
def test_aten_cpu_capability_is_part_of_the_tag(value: str, suffix: str) -> None:
    plain = place.host_tag({}).partition("/")[0]
    assert place.host_tag({"ATEN_CPU_CAPABILITY": value}).partition("/")[0] == plain + suffix


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("__all__ = []\n__version__ = '2.13.0+cpu'\ndebug = False\n", "2.13.0+cpu"),
        ('__version__ = "2.14.0.dev20261101+cu130"', "2.14.0.dev20261101+cu130"),
        ("__version__ = '2.11.0'\r\n", "2.11.0"),
        ("broken", "unknown"),
    ],
)
def test_torch_version_from_its_text(tmp_path: Path, text: str, version: str) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(text, newline="")
    assert place.torch_version([str(tmp_path / "none"), str(tmp_path)]) == version


def test_no_torch(tmp_path: Path) -> None:
    assert place.torch_version([str(tmp_path)]) == "none"


def test_torch_version_is_that_of_the_torch_that_is_imported() -> None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        expected = version("torch")
    except PackageNotFoundError:
        expected = "none"
    assert place.torch_version() == expected


def test_plain() -> None:
    assert place.plain("2.13.0+cu130_x-y") == "2.13.0+cu130_x-y"
    assert place.plain("a/b c é'") == "a_b_c___"


# --- mounts ---

MOUNT_TEST = """
import os, sys
sys.path.insert(0, sys.argv[1])
from cachehome import home
print(home.user_cache_dir({"HOME": sys.argv[2]}))
print(home.resolve({"HOME": sys.argv[2]}).reason)
"""


def in_mounts(directory: Path, *options: str) -> list[str]:
    """What a child sees whose *directory* is a tmpfs mounted with *options*."""
    directory.mkdir(exist_ok=True)
    root = str(Path(home.__file__).parents[1])
    script = f'mount -t tmpfs -o {",".join(options)} none "$1" && exec "$2" -c "$3" "$4" "$1"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(directory), sys.executable, MOUNT_TEST, root],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"can't mount here: {done.stderr.strip()}")
    assert done.stderr == ""
    return done.stdout.splitlines()


@root_only
@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("ro",), "read-only"),
        (("noexec",), "noexec"),
    ],
)
def test_home_on_an_unusable_mount(tmp_path: Path, options: tuple[str, ...], why: str) -> None:
    directory, reason = in_mounts(tmp_path / "home", *options)
    assert directory == "None"
    assert why in reason


@root_only
@pytest.mark.parametrize(
    ("options", "why"), [(("size=1m",), "(1 MiB and "), (("nr_inodes=8",), "files free")]
)
def test_home_without_room_is_not_for_live_directories(
    tmp_path: Path, options: tuple[str, ...], why: str
) -> None:
    directory, reason = in_mounts(tmp_path / "home", *options)
    assert directory == str(tmp_path / "home" / ".cache")
    assert why in reason


@root_only
def test_home_on_a_good_mount(tmp_path: Path) -> None:
    directory, reason = in_mounts(tmp_path / "home", "size=256m")
    assert directory == str(tmp_path / "home" / ".cache")
    assert reason.endswith("comes from HOME")
