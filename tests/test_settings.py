from __future__ import annotations

from pathlib import Path

import pytest

from cachehome.errors import ConfigError
from cachehome.settings import BY_KEY, TABLE, Settings, read_bytes


def load(tmp_path: Path, environ: dict[str, str] | None = None, **options: object) -> Settings:
    # A directory without cachehome.toml, and a configuration directory of its own.
    given = {"XDG_CONFIG_HOME": str(tmp_path / "config")} | (environ or {})
    return Settings.load(given, directory=str(tmp_path), **options)  # type: ignore[arg-type]


def test_defaults_are_those_of_the_table(tmp_path: Path) -> None:
    settings = load(tmp_path)
    for row in TABLE:
        assert getattr(settings, row.key) == row.default
        assert settings.origin[row.key] == "default"


def test_command_line_before_environment_before_file(tmp_path: Path) -> None:
    (tmp_path / "cachehome.toml").write_text(
        '[compiler_cache]\nstore = "/file"\nprofile = "file"\npublish = false\nmax_storage_bytes = 12\n'
    )
    settings = load(
        tmp_path,
        {"CACHEHOME_STORE": "/environ", "CACHEHOME_PROFILE": "environ"},
        command_line={"store": "/cli"},
    )
    assert (settings.store, settings.profile, settings.publish) == (("/cli",), "environ", False)
    assert settings.max_storage_bytes == 12
    assert settings.origin["store"] == "--store"
    assert settings.origin["profile"] == "CACHEHOME_PROFILE"
    assert settings.origin["publish"] == str(tmp_path / "cachehome.toml")


def test_where_the_file_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "config" / "cachehome").mkdir(parents=True)
    (tmp_path / "config" / "cachehome" / "cachehome.toml").write_text('[compiler_cache]\nprofile = "user"\n')
    assert load(tmp_path).profile == "user"
    (tmp_path / "cachehome.toml").write_text('[compiler_cache]\nprofile = "here"\n')
    assert load(tmp_path).profile == "here"
    (tmp_path / "named.toml").write_text('[compiler_cache]\nprofile = "named"\n')
    assert load(tmp_path, {"CACHEHOME_CONFIG": str(tmp_path / "named.toml")}).profile == "named"


def test_empty_is_unset(tmp_path: Path) -> None:
    settings = load(tmp_path, {"CACHEHOME_STORE": "", "CACHEHOME_SLIM": "  "})
    assert settings.store == ()
    assert settings.slim == "auto"


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("CACHEHOME_STORE", "relative/store", "absolute directory"),
        ("CACHEHOME_STORE", "ftp://host/x", "URL"),
        ("CACHEHOME_SLIM", "yes", "off, restore or publish"),
        ("CACHEHOME_RESTORE", "maybe", "on or off"),
        ("CACHEHOME_PUBLISH_INTERVAL_SECONDS", "-1", "0 or more"),
        ("CACHEHOME_PUBLISH_BUDGET_SECONDS", "0", "more than 0"),
        ("CACHEHOME_PUBLISH_INTERVAL_SECONDS", "nan", "0 or more"),
        ("CACHEHOME_KEEP_GENERATIONS", "0", "1 or more"),
        ("CACHEHOME_MAX_STORAGE_BYTES", "8 parsecs", "8GiB"),
        ("CACHEHOME_COMPRESSION", "zstd:40", "1 to 19"),
        ("CACHEHOME_COMPRESSION", "lz4", "none"),
        ("CACHEHOME_LOCAL", "scratch", "absolute"),
        ("CACHEHOME", "true", "on, off, or an absolute directory"),
        ("CACHEHOME", "~/caches", "on, off, or an absolute directory"),
    ],
)
def test_a_value_that_is_not_allowed(tmp_path: Path, variable: str, value: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        load(tmp_path, {variable: value})
    assert caught.value.source == variable
    assert variable in str(caught.value)
    assert "\n" not in str(caught.value)
    lenient = load(tmp_path, {variable: value}, lenient=True)
    assert [problem.source for problem in lenient.problems] == [variable]


def test_an_unknown_key_is_named_with_its_source(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"CACHEHOME_STROE.*did you mean CACHEHOME_STORE"):
        load(tmp_path, {"CACHEHOME_STROE": "/x"})
    (tmp_path / "cachehome.toml").write_text("[compiler_cache]\nstroe = 1\n")
    with pytest.raises(ConfigError, match=r"stroe \(from .*cachehome.toml\): did you mean store"):
        load(tmp_path)


def test_what_kubernetes_sets_for_a_service_is_no_setting(tmp_path: Path) -> None:
    load(tmp_path, {"CACHEHOME_SERVICE_HOST": "10.0.0.1", "CACHEHOME_PORT_80_TCP": "tcp://10.0.0.1:80"})


@pytest.mark.parametrize("text", ["not = [toml", "compiler_cache = 3", '[compiler_cache]\nx = "\xff'])
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "cachehome.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"cachehome\.toml"):
        load(tmp_path)


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="CACHEHOME_CONFIG"):
        load(tmp_path, {"CACHEHOME_CONFIG": str(tmp_path / "absent.toml")})


@pytest.mark.parametrize(
    ("text", "count"),
    [("12", 12), ("8GiB", 8 << 30), ("500 MB", 500_000_000), ("1.5k", 1500), ("2Ti", 2 << 40)],
)
def test_bytes(text: str, count: int) -> None:
    assert read_bytes(text) == count


def test_settings_are_immutable_and_replaceable(tmp_path: Path) -> None:
    settings = load(tmp_path, {"CACHEHOME_PROFILE": "x"})
    with pytest.raises(AttributeError):
        settings.profile = "y"
    other = settings.replace(slim="restore")
    assert (other.profile, other.slim, settings.slim) == ("x", "restore", "auto")
    with pytest.raises(TypeError, match="stor"):
        Settings(stor="/x")


def test_what_is_in_the_key() -> None:
    in_key = {row.key for row in TABLE if row.in_key}
    assert in_key == {"profile", "build_key", "image", "sources", "packages", "profile_files"}
    assert BY_KEY["enabled"].variable == "CACHEHOME"
