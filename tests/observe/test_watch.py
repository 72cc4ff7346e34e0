"""The watcher, with packages that stand in for torch's: what it notices, and that it changes nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import Python

IMPORTED = "import sys; print([n for n in sys.modules if n.startswith('cachehome')])"


def test_off_it_is_not_even_imported(python: Python) -> None:
    for wishes in (
        {},
        {"CACHEHOME": "1"},
        {"CACHEHOME_DIAGNOSTICS": "0"},
        {"CACHEHOME": "1", "CACHEHOME_DIAGNOSTICS": ""},
    ):
        done = python(IMPORTED, **wishes)
        assert "observe" not in done.stdout, wishes
        assert done.stderr == ""


def test_nothing_beyond_os_and_sys_is_imported_at_the_start(python: Python) -> None:
    listed = "import sys; print(*sorted(sys.modules))"
    without = set(python(listed, CACHEHOME="1").stdout.split())
    counted = set(python(listed, CACHEHOME="1", CACHEHOME_DIAGNOSTICS="1").stdout.split())
    assert counted - without <= {"cachehome.observe", "cachehome.observe.watch", "time"}


def test_a_directory_that_was_restored_is_watched_for_repairs(python: Python, tmp_path: Path) -> None:
    live = tmp_path / "live"
    (live / ".cachehome").mkdir(parents=True)
    environ = {"CACHEHOME": str(tmp_path / "root"), "TORCHINDUCTOR_CACHE_DIR": str(live)}
    assert "observe" not in python(IMPORTED, **environ).stdout
    (live / ".cachehome" / "stamp").write_text("{}")
    code = "from cachehome.observe import watch; print(watch.counting, sorted(watch._watched))"
    done = python(code, **environ, CACHEHOME_APPLIED="x")
    assert done.stdout.startswith("False ['torch._inductor.codecache'"), done
    assert "observe" not in python(IMPORTED, **environ | {"CACHEHOME": "0"}, CACHEHOME_APPLIED="x").stdout


@pytest.fixture
def stub(tmp_path: Path) -> Path:
    package = tmp_path / "stub" / "torch" / "_inductor"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("__version__ = '9.9'")
    (package / "__init__.py").write_text("")
    return package


def run_with(python: Python, stub: Path, code: str, **environ: str) -> str:
    path = str(stub.parent.parent)
    done = python(f"import sys; sys.path.insert(0, {path!r})\n{code}", CACHEHOME_DIAGNOSTICS="1", **environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_loader_is_as_it_was(python: Python, stub: Path) -> None:
    (stub / "codecache.py").write_text("VALUE = 1")
    code = (
        "import importlib.util as u, torch._inductor.codecache as c\n"
        "loader = c.__spec__.loader\n"
        "print(type(loader).__name__, 'exec_module' in vars(loader), c.VALUE, c.__loader__ is loader)\n"
        "print(u.find_spec('torch._inductor.triton_bundler'))"
    )
    assert run_with(python, stub, code).splitlines() == ["SourceFileLoader False 1 True", "None"]


def test_a_module_that_fails_fails_as_ever(python: Python, stub: Path) -> None:
    (stub / "codecache.py").write_text("raise RuntimeError('theirs')")
    code = (
        "try:\n import torch._inductor.codecache\n"
        "except RuntimeError as e:\n print(e, 'torch._inductor.codecache' in sys.modules)"
    )
    assert run_with(python, stub, code) == "theirs False\n"


def test_a_torch_that_is_built_in_another_way_is_unknown(python: Python, stub: Path, tmp_path: Path) -> None:
    from cachehome.observe import history

    (stub / "codecache.py").write_text("class FxGraphCache: pass")
    (stub / "triton_bundler.py").write_text("TritonBundler = 3")
    code = (
        "import torch._inductor.codecache, torch._inductor.triton_bundler\n"
        "from cachehome.observe.activity import log\n"
        "log.add(fx_hits=0)"
    )
    run_with(python, stub, code, CACHEHOME_REPORT_DIR=str(tmp_path / "reports"))
    [process] = history.logs(str(tmp_path / "reports"))
    assert "does not mention" in process.unknown["fx"]
    assert "has no load_autotuners" in process.unknown["relocation"]
    activity = history.total([process])
    assert activity["fx_hits"] is None
    assert activity["bundled_kernels"] is None


def test_what_was_imported_before_is_watched_too() -> None:
    from cachehome.observe import watch

    assert watch.Finder.find_spec("os") is None
    assert not any(finder is watch.Finder for finder in sys.meta_path)
