"""What activation sets: wishes, roots, exported values, children, slots."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cachehome import families, home, place

INDUCTOR, TRITON = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
TAG = place.host_tag({})


def both(values: dict[str, str]) -> dict[str, str]:
    """What *values* say of the two families that lie in each other; engines' roots stand alone."""
    return {name: value for name, value in values.items() if name in (INDUCTOR, TRITON)}


@pytest.fixture
def user(tmp_path: Path) -> dict[str, str]:
    """The environment of a user with a home."""
    return {"HOME": str(tmp_path)}


def live(root: str | Path, level: str = "local") -> str:
    return f"{root}/{TAG}/{level}"


def activated(environ: dict[str, str], **wishes: object) -> dict[str, str]:
    """A copy of *environ* in which activation has been carried out: what a child inherits."""
    child = dict(environ)
    home.apply(home.resolve(environ, **wishes), child)
    return child


# --- wishes ---


def test_the_default_root(user: dict[str, str], tmp_path: Path) -> None:
    answer = home.resolve(user)
    assert answer.root == f"{tmp_path}/.cache/cachehome"
    assert answer.source == "HOME"
    assert answer.live == live(answer.root)
    assert answer.values == {
        INDUCTOR: f"{answer.live}/torchinductor",
        TRITON: f"{answer.live}/torchinductor/triton",
        "VLLM_CACHE_ROOT": f"{answer.live}/vllm",
        "SGLANG_CACHE_DIR": f"{answer.live}/sglang",
    }
    assert list(answer.directories.values()) == list(answer.values.values())
    assert list(answer.directories) == ["inductor", "triton", "vllm", "sglang"]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("value", ["1", "on", "ON", " 1 "])
def test_on(user: dict[str, str], tmp_path: Path, value: str) -> None:
    assert home.resolve(user | {"CACHEHOME": value}, app="engine").root == f"{tmp_path}/.cache/cachehome"


@pytest.mark.parametrize("value", ["0", "off", "Off"])
def test_off(user: dict[str, str], value: str) -> None:
    environ = user | {"CACHEHOME": value, TRITON: "", INDUCTOR: "/x"}
    answer = home.resolve(environ, app="engine")
    assert (answer.off, answer.root, answer.values, answer.unset) == (True, None, {}, [])
    assert answer.directories == {"inductor": "/x", "triton": "/x/triton"}  # where torch itself puts them
    before = dict(environ)
    home.apply(answer, environ)
    assert environ == before


def test_a_path(user: dict[str, str], tmp_path: Path) -> None:
    answer = home.resolve(user | {"CACHEHOME": f"{tmp_path}/x/../root/"})
    assert answer.root == f"{tmp_path}/root"
    assert answer.source == "CACHEHOME"


@pytest.mark.parametrize("value", ["rel", "./x", "~", "~/x", "yes", "2", "s3://bucket/x"])
def test_anything_else_is_ignored_and_said(user: dict[str, str], tmp_path: Path, value: str) -> None:
    answer = home.resolve(user | {"CACHEHOME": value})
    assert answer.root == f"{tmp_path}/.cache/cachehome"
    assert any(repr(value) in note for note in answer.notes)


def test_an_app_has_a_root_of_its_own_unless_the_user_spoke(user: dict[str, str], tmp_path: Path) -> None:
    assert home.resolve(user, app="mstar").root == f"{tmp_path}/.cache/mstar"
    assert home.resolve(user | {"CACHEHOME": "1"}, app="mstar").root == f"{tmp_path}/.cache/cachehome"
    assert home.resolve(user | {"CACHEHOME": "/r"}, app="mstar").source != "HOME"


def test_a_known_build(user: dict[str, str], tmp_path: Path) -> None:
    assert home.resolve(user, build8="0123abcd").live == live(f"{tmp_path}/.cache/cachehome", "0123abcd")


def test_another_interpreters_tag(user: dict[str, str], tmp_path: Path) -> None:
    tag = "cp312-x86_64-00000001/torch-2.11.0"
    assert home.resolve(user, tag=tag).live == f"{tmp_path}/.cache/cachehome/{tag}/local"


# --- roots that will not do ---


def test_no_home_sets_nothing() -> None:
    answer = home.resolve({"HOME": "/dev/null/x"})
    assert (answer.root, answer.live, answer.values, answer.directories) == (None, None, {}, {})
    assert "/dev/null is not a directory" in answer.reason
    assert "torch's own defaults apply" in answer.reason


def test_an_unusable_root_of_the_users_is_not_replaced_by_another(
    user: dict[str, str], tmp_path: Path
) -> None:
    answer = home.resolve(user | {"CACHEHOME": "/dev/null/x"})
    assert (answer.root, answer.values) == (None, {})


def test_xdg_cache_home_that_will_not_do(user: dict[str, str], tmp_path: Path) -> None:
    answer = home.resolve(user | {"XDG_CACHE_HOME": "/dev/null/x"})
    assert answer.root == f"{tmp_path}/.cache/cachehome"
    assert answer.skipped == [("/dev/null/x/cachehome", "/dev/null is not a directory")]


def test_relative_values_are_shown(user: dict[str, str]) -> None:
    answer = home.resolve(user | {"XDG_CACHE_HOME": "~/x"})
    assert ("XDG_CACHE_HOME=~/x", "is not an absolute path") in answer.skipped


def test_a_live_directory_of_somebody_else(user: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / ".cache" / "cachehome").mkdir(parents=True)
    Path(live(tmp_path / ".cache" / "cachehome")).parent.mkdir(parents=True)
    Path(live(tmp_path / ".cache" / "cachehome")).write_text("a file in the way")
    answer = home.resolve(user)
    assert answer.root is None
    assert "is not a directory" in answer.reason


def test_a_blank_in_the_home_falls_to_the_private_local_directory(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path / "john doe"), "CACHEHOME_LOCAL": str(tmp_path / "local")}
    answer = home.resolve(environ)
    assert answer.values == {}
    (tmp_path / "local").mkdir(mode=0o700)
    answer = home.resolve(environ)
    assert answer.root == str(tmp_path / "local")
    assert answer.source == "CACHEHOME_LOCAL"
    assert "blank" in answer.reason


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o1777, 0o750])
def test_a_local_directory_that_others_can_enter(tmp_path: Path, mode: int) -> None:
    local = tmp_path / "local"
    local.mkdir()
    local.chmod(mode)
    assert home.private_local(str(local)) == (
        None,
        f"{local} is not a directory of mode 0700 of user {os.geteuid()}",
    )
    own = local / f"cachehome-{os.geteuid()}"
    assert home.private_local(str(local), make=True) == (str(own), "")
    assert own.stat().st_mode & 0o777 == 0o700
    assert home.private_local(str(local)) == (str(own), "")


def test_a_local_directory_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    (tmp_path / "local").symlink_to("theirs")
    found, why = home.private_local(str(tmp_path / "local"))
    assert found is None
    assert "not a directory of mode 0700" in why


def test_the_hook_makes_no_local_directory(tmp_path: Path) -> None:
    local = tmp_path / "local"
    environ = {"HOME": "/dev/null/x", "CACHEHOME_LOCAL": str(local)}
    assert home.resolve(environ).root is None
    assert not local.exists()
    assert home.resolve(environ, make=True).root == str(local)
    assert home.resolve(environ).root == str(local)


def test_a_network_home_goes_to_local_disk(
    user: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = tmp_path / "local"
    local.mkdir(mode=0o700)
    real = place.obstacle

    def obstacle(path: str, *, foreign: bool = True) -> tuple[str, str]:
        return ("network", path) if "/.cache/" in path else real(path, foreign=foreign)

    monkeypatch.setattr(place, "obstacle", obstacle)
    monkeypatch.setattr(home, "network_mount", lambda path: "nfs4")
    monkeypatch.setattr(home, "_SURVIVES_REBOOT", str(tmp_path / "none"))
    assert home.resolve(user).root is None
    answer = home.resolve(user | {"CACHEHOME_LOCAL": str(local)})
    assert answer.root == str(local)
    assert "nfs4" in answer.reason
    assert home.resolve(user | {"CACHEHOME_LOCAL": "rel"}).root is None
    # An exported directory there is used as told, with a warning.
    exported = str(tmp_path / ".cache" / "mine")
    answer = home.resolve(user | {INDUCTOR: exported})
    assert answer.directories["inductor"] == exported
    assert home.warnings(answer) == [
        f"{INDUCTOR}={exported}: it is on a network file system (nfs4); used as told"
    ]


# --- exported values ---


def test_an_exported_value_wins(user: dict[str, str]) -> None:
    answer = home.resolve(user | {INDUCTOR: "/x/it", TRITON: "/y"})
    assert both(answer.values) == {}
    assert answer.kept == {INDUCTOR: "/x/it", TRITON: "/y"}
    assert (answer.directories["inductor"], answer.directories["triton"]) == ("/x/it", "/y")
    assert not any(f";{name}=" in answer.record for name in (INDUCTOR, TRITON))
    alone = home.resolve(user | {row.variable: "/x" for row in families.BUILTIN})
    assert (alone.values, alone.record) == ({}, "")


def test_exporting_inductors_alone_moves_tritons_too(user: dict[str, str]) -> None:
    answer = home.resolve(user | {INDUCTOR: "/x/it"})
    assert both(answer.values) == {TRITON: "/x/it/triton"}
    # Also where there is no home.
    assert home.resolve({"HOME": "/dev/null/x", INDUCTOR: "/x/it"}).values == {TRITON: "/x/it/triton"}


def test_exporting_tritons_alone_leaves_inductors_to_us(user: dict[str, str]) -> None:
    answer = home.resolve(user | {TRITON: "/y"})
    assert list(both(answer.values)) == [INDUCTOR]
    assert answer.kept == {TRITON: "/y"}


@pytest.mark.parametrize("blank", ["", " "])
def test_blank_values_are_unset(user: dict[str, str], blank: str) -> None:
    assert set(both(home.resolve(user | {INDUCTOR: blank, TRITON: blank}).values)) == {INDUCTOR, TRITON}
    # With nothing to set they go: Inductor would take the working directory, and Triton would fail.
    environ = {"HOME": "/dev/null/x", INDUCTOR: blank, TRITON: blank}
    assert activated(environ) == {"HOME": "/dev/null/x"}


@pytest.mark.parametrize("value", ["cache/x", "./x", "~/x", "a b"])
def test_a_relative_value_is_made_absolute_early(
    user: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    child = activated(user | {INDUCTOR: value})
    assert child[INDUCTOR] == os.path.abspath(value)
    assert child[TRITON] == os.path.abspath(value) + "/triton"
    assert INDUCTOR not in home.applied(child)
    # It stays the user's in a child, whose working directory may be another one.
    monkeypatch.chdir("/")
    assert activated(child)[INDUCTOR] == child[INDUCTOR]
    assert home.resolve(child).kept == {INDUCTOR: child[INDUCTOR]}


def test_a_relative_value_in_a_working_directory_that_is_gone(
    user: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    answer = home.resolve(user | {TRITON: "x"})
    assert TRITON not in answer.values
    assert any("working directory is gone" in note for note in answer.notes)


def test_triton_home_leaves_triton_alone(user: dict[str, str]) -> None:
    answer = home.resolve(user | {"TRITON_HOME": "/t"})
    assert list(both(answer.values)) == [INDUCTOR]
    assert "triton" not in answer.directories
    assert ("triton", "TRITON_HOME is set") in answer.skipped
    assert TRITON in home.resolve(user | {"TRITON_HOME": " "}).values
    # A variable that we set for the parent goes again.
    assert TRITON not in activated(activated(user) | {"TRITON_HOME": "/t"})


@pytest.mark.parametrize(
    "extra",
    [
        {INDUCTOR: "/tmp/torchinductor_me", "USER": "me"},
        {INDUCTOR: "/tmp/torchinductor_a_b", "LOGNAME": "a/b"},
        {INDUCTOR: "/scratch/torchinductor_me", "USER": "me", "TMPDIR": "/scratch/"},
        {INDUCTOR: f"/var/tmp/torchinductor_uid_{os.getuid()}"},
        {INDUCTOR: "/tmp/torchinductor_me", "USER": "me", TRITON: "/tmp/torchinductor_me/triton"},
        {INDUCTOR: "/tmp/torchinductor_me", "USER": "me", TRITON: "/tmp/torchinductor_me/triton/3"},
    ],
)
def test_torchs_own_default_is_nobodys_choice(user: dict[str, str], extra: dict[str, str]) -> None:
    answer = home.resolve(user | extra)
    assert answer.kept == {}
    assert answer.values == home.resolve(user).values


@pytest.mark.parametrize(
    "extra",
    [
        {INDUCTOR: "/tmp/torchinductor_mine", "USER": "me"},
        {INDUCTOR: "/scratch/torchinductor_me", "USER": "me"},
        {INDUCTOR: "/tmp/torchinductor_me/x", "USER": "me"},
        {TRITON: "/tmp/triton/0"},
        {INDUCTOR: "/x", TRITON: "/x/triton/zero"},
        {INDUCTOR: "/x", TRITON: "/xtriton"},
    ],
)
def test_what_only_looks_like_torchs_default(user: dict[str, str], extra: dict[str, str]) -> None:
    exported = {name: value for name, value in extra.items() if name in (INDUCTOR, TRITON)}
    assert home.resolve(user | extra).kept == exported


def test_torchs_per_device_directory_below_the_users(user: dict[str, str]) -> None:
    # torch wrote the second into the environment of the parent.
    answer = home.resolve(user | {INDUCTOR: "/x", TRITON: "/x/triton/0"})
    assert answer.kept == {INDUCTOR: "/x"}
    assert both(answer.values) == {TRITON: "/x/triton"}


def test_families_may_be_chosen(user: dict[str, str]) -> None:
    answer = home.resolve(user | {"CACHEHOME_FAMILIES": "triton, made-up"})
    assert list(answer.values) == [TRITON]
    assert any("made-up" in note for note in answer.notes)
    row = families.Family("mine", "MINE_DIR", "mine", entries=())
    answer = home.resolve(user, families=[*families.BUILTIN, row])
    assert answer.values["MINE_DIR"] == f"{answer.live}/mine"


# --- children ---


def test_idempotent(user: dict[str, str]) -> None:
    child = activated(user)
    assert activated(child) == child | {home.APPLIED: home.resolve(child).record}
    assert {name: child[name] for name in (INDUCTOR, TRITON)} == both(home.resolve(child).values)


def test_a_child_keeps_the_directories_of_its_parent(user: dict[str, str], tmp_path: Path) -> None:
    child = activated(user, app="engine") | {
        "HOME": str(tmp_path / "other"),
        "XDG_CACHE_HOME": str(tmp_path / "x"),
    }
    for wishes in ({}, {"app": "engine"}, {"app": "another"}):
        assert home.resolve(child, **wishes).root == f"{tmp_path}/.cache/engine"
    assert home.resolve(child | {"CACHEHOME": "1"}).root == f"{tmp_path}/.cache/engine"


def test_a_child_of_a_known_build_keeps_it(user: dict[str, str]) -> None:
    child = activated(user, build8="0123abcd")
    assert "/0123abcd/" in home.resolve(child).values[INDUCTOR]
    assert "/fedcba98/" in home.resolve(child, build8="fedcba98").values[INDUCTOR]


def test_a_child_that_was_told_another_root(user: dict[str, str], tmp_path: Path) -> None:
    child = activated(user | {"CACHEHOME": f"{tmp_path}/one"})
    assert home.resolve(child).root == f"{tmp_path}/one"
    assert home.resolve(child | {"CACHEHOME": f"{tmp_path}/two"}).root == f"{tmp_path}/two"


def test_a_child_on_another_kind_of_host_resolves_anew(user: dict[str, str], tmp_path: Path) -> None:
    child = activated(user, build8="0123abcd", tag="cp311-x86_64-00000001/torch-2.13.0")
    child |= {"XDG_CACHE_HOME": str(tmp_path / "x")}
    answer = home.resolve(child)
    assert answer.live == live(tmp_path / "x" / "cachehome")
    assert answer.kept == {}


def test_a_child_that_cannot_use_the_directories_of_its_parent(user: dict[str, str], tmp_path: Path) -> None:
    root = tmp_path / "root"
    child = activated(user | {"CACHEHOME": str(root)})
    root.write_text("in the way")
    assert INDUCTOR not in activated(child)
    assert home.APPLIED not in activated(child)


def test_a_value_that_a_child_exports_itself_wins(user: dict[str, str]) -> None:
    child = activated(user) | {INDUCTOR: "/x"}
    answer = home.resolve(child)
    assert answer.kept == {INDUCTOR: "/x"}
    assert both(answer.values) == {TRITON: "/x/triton"}


def test_torchs_per_device_directory_below_ours_is_ours(user: dict[str, str]) -> None:
    child = activated(user)
    child[TRITON] = child[INDUCTOR] + "/triton/0"
    assert home.resolve(child).kept == {}


@pytest.mark.parametrize(
    "record", ["x", ";;;", "tag=;", "wish=1;root=/x", "=", "wish=;source=;root=;tag=;build=", "\udcff"]
)
def test_a_broken_record_is_none(user: dict[str, str], record: str) -> None:
    assert home.resolve(user | {home.APPLIED: record}).values == home.resolve(user).values


def test_a_record_survives_odd_names(user: dict[str, str], tmp_path: Path) -> None:
    root = tmp_path / "a;b%3Bc=d%"
    child = activated(user | {"CACHEHOME": str(root)})
    assert home.applied(child)["root"] == str(root)
    assert home.resolve(child).kept == {}
    assert both(home.resolve(child).values) == {name: child[name] for name in (INDUCTOR, TRITON)}


# --- slots ---


def test_slots(user: dict[str, str]) -> None:
    parent = user | {"CACHEHOME_SLOT": "rank{LOCAL_RANK}"}
    answer = home.resolve(parent | {"LOCAL_RANK": "3"})
    assert answer.values[INDUCTOR].endswith("/local/rank3/torchinductor")
    assert answer.slot == "rank3"
    child = activated(parent | {"LOCAL_RANK": "0"}) | {"LOCAL_RANK": "1"}
    assert home.resolve(child).values[INDUCTOR].endswith("/local/rank1/torchinductor")
    assert home.resolve(child).kept == {}
    assert home.resolve(parent, slot="decode-{N}").values[INDUCTOR].endswith("/local/torchinductor")


@pytest.mark.parametrize(
    "slot",
    [
        "{NONE}",
        "{",
        "a/b",
        "..",
        ".",
        "a b",
        "{}",
        "{0}",
        "{HOME}",
        "{LOCAL_RANK.x}",
        "{LOCAL_RANK:z}",
        "x" * 300,
        "é",
    ],
)
def test_a_slot_that_is_none_shares_the_directory_and_says_so(user: dict[str, str], slot: str) -> None:
    answer = home.resolve(user | {"LOCAL_RANK": "0", "CACHEHOME_SLOT": slot})
    assert answer.values == home.resolve(user).values
    assert any(note.startswith("slot") for note in answer.notes)


# --- the hook's short cut ---

TEXTS = st.sampled_from(
    [
        "",
        " ",
        "1",
        "on",
        "ON",
        "0",
        "off",
        "rel",
        "~/x",
        "/dev/null/x",
        "/",
        "/etc",
        "HERE",
        "HERE/a b",
        "HERE/é",
        "HERE/;%",
    ]
)
NAMES = st.sampled_from(
    [
        *("CACHEHOME", "HOME", "XDG_CACHE_HOME", INDUCTOR, TRITON, "TRITON_HOME", "CACHEHOME_SLOT", "USER"),
        *("CACHEHOME_FAMILIES", "CACHEHOME_LOCAL", "ATEN_CPU_CAPABILITY", home.APPLIED),
    ]
)


def hook(environ: dict[str, str]) -> dict[str, str] | None:
    """What the hook does with place.ordinary(); None where it goes to home.resolve()."""
    wanted = home.wish(environ)[0]
    if wanted in ("", "off"):
        return environ
    values = place.ordinary(environ, wanted)
    return None if values is None else environ | values


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(environ=st.dictionaries(NAMES, TEXTS), again=st.dictionaries(NAMES, TEXTS, max_size=2))
def test_the_short_cut_gives_the_same_answer(
    tmp_path: Path, environ: dict[str, str], again: dict[str, str]
) -> None:
    def here(texts: dict[str, str]) -> dict[str, str]:
        return {name: text.replace("HERE", str(tmp_path)) for name, text in texts.items()}

    environ = here({"HOME": "HERE", "CACHEHOME": "1"} | environ)
    for _ in range(2):  # a process, and a child of it in which something has changed
        short = hook(environ)
        if home.wish(environ)[0] in ("", "off"):
            return
        whole = dict(environ)
        home.apply(home.resolve(environ), whole)
        if short is not None:
            watched = (INDUCTOR, TRITON)
            assert {name: short.get(name) for name in watched} == {name: whole.get(name) for name in watched}
            assert {k: v for k, v in home.applied(short).items() if k != "source"} == {
                k: v for k, v in home.applied(whole).items() if k != "source"
            }
        environ = whole | here(again)


def test_an_ordinary_start_is_ordinary(user: dict[str, str], tmp_path: Path) -> None:
    for wanted in ("1", str(tmp_path / "root")):
        environ = user | {"CACHEHOME": wanted}
        child = hook(environ)
        assert child is not None
        assert child != environ
        assert hook(child) == child  # and so is that of its children


def test_resolving_changes_nothing(user: dict[str, str], tmp_path: Path) -> None:
    before = dict(user)
    home.resolve(user, make=True)
    home.directories(user)
    assert user == before
    assert os.listdir(tmp_path) == []


def test_path(user: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    answer = home.resolve(user)
    assert home.path(environ=user) == answer.live
    assert home.path("triton", user) == answer.directories["triton"]
    with pytest.raises(ValueError, match="inductor, triton"):
        home.path("made-up", user)
    assert home.path("inductor", {"HOME": "/dev/null/x"}) is None


def test_public_names() -> None:
    import cachehome

    assert "Session" in cachehome.__all__
    for name in set(cachehome.__all__) - {"Session"}:
        assert getattr(cachehome, name) is not None
        assert name in dir(cachehome)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = cachehome.nonsense
    assert pickle.loads(pickle.dumps(cachehome.CacheHomeError("x"))).args == ("x",)
    assert sys.modules["cachehome.home"].user_cache_dir is cachehome.user_cache_dir
