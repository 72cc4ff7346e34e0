"""Every command that the README and the pages show is run, or says why not. The convention is in pages.py."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pages
import pytest
from pages import PAGES, ROOT, blocks, name

# Blocks that are shown but not run, by reason. A new one is a decision: count it here.
NOT_RUN = {
    "compiles for minutes; the demo has its own test": 1,
    "makes .venv and compiles for minutes": 1,
    "needs a GPU": 1,
    "needs a cluster": 1,
    "needs a container engine": 2,
    "needs a package index": 2,
    "these are what continuous integration runs": 1,
}

WITH_COMMANDS = [
    p for p in PAGES if any(b.language in ("console", "python") and not b.not_run for b in blocks(p))
]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.skipif(
    not Path(sys.executable).with_name("cachehome").exists(), reason="cachehome is not installed"
)
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=name)
def test_commands_do_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    problems = pages.run(page, tmp_path / "home", timeout=550)
    assert not problems, "\n\n".join(problems)


def test_blocks_that_are_not_run_are_counted() -> None:
    found = Counter(b.not_run for page in PAGES for b in blocks(page) if b.not_run)
    assert found == NOT_RUN


def test_every_block_has_a_known_language() -> None:
    known = {"console", "python", "bash", "toml", "yaml", "dockerfile", "ini", "json", "text"}
    assert {b.language for page in PAGES for b in blocks(page)} <= known


def test_console_blocks_hold_commands() -> None:
    for page in PAGES:
        for block in blocks(page):
            assert block.language != "console" or pages.commands(block), f"{name(page)}:{block.line}"


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_scripts_parse() -> None:
    for page in PAGES:
        for block in blocks(page):
            if block.language == "bash":
                done = subprocess.run(
                    ["bash", "-n"], input=block.text, text=True, capture_output=True, check=False
                )
                assert not done.stderr, f"{name(page)}:{block.line}: {done.stderr}"


def test_settings_files_are_read(tmp_path: Path) -> None:
    from cachehome.settings import Settings

    for page in PAGES:
        for number, block in enumerate(b for b in blocks(page) if b.language == "toml" and not b.not_run):
            file = tmp_path / f"{page.stem}-{number}.toml"
            file.write_text(block.text)
            Settings.load({"CACHEHOME_CONFIG": str(file), "HOME": str(tmp_path)})


def test_manifests_parse() -> None:
    yaml = pytest.importorskip("yaml")
    for page in PAGES:
        for block in blocks(page):
            if block.language == "yaml":
                assert list(yaml.safe_load_all(block.text)), f"{name(page)}:{block.line}"


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{name(page)}: {target}"


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / ".ci" / "mkdocs.yml").read_text(encoding="utf-8")
    for page in PAGES:
        place = name(page).removeprefix("docs/")
        assert name(page) == "README.md" or f": {place}\n" in navigation, place


def test_verbs_and_variables_that_pages_name_exist() -> None:
    from cachehome.cli import VERBS
    from cachehome.settings import BY_VARIABLE, NOT_SETTINGS

    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for verb in re.findall(r"(?:`|\$ |-m )cachehome ([a-z]+)", text):
            assert verb in VERBS, f"{name(page)}: cachehome {verb}"
        for variable in re.findall(r"\bCACHEHOME_[A-Z][A-Z_]*[A-Z]\b", text):
            assert variable in BY_VARIABLE or variable in NOT_SETTINGS, f"{name(page)}: {variable}"
