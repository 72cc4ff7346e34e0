"""Clones of live directories: what they share, and that nobody's writes reach another's files."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cachehome import families
from cachehome.sync.clone import clone, restored
from cachehome.sync.live import Live
from cachehome.sync.publish import publish
from cachehome.sync.restore import restore
from cachehome.sync.scan import scan

KERNEL = "A" * 52
GRAPH = "fxgraph/ab/fabc/"


def kernel(directory: Path, name: str = KERNEL) -> Path:
    """What Triton leaves."""
    tree = directory / name
    tree.mkdir(parents=True)
    (tree / "k.cubin").write_bytes(b"not an ELF file")
    (tree / "k.json").write_text("{}")
    paths = {child: str(tree / child) for child in ("k.cubin", "k.json")}
    (tree / "__grp__k.json").write_text(json.dumps({"child_paths": paths}))
    return tree


def graph(directory: Path, data: bytes = b"graph") -> Path:
    import base64
    import hashlib

    name = base64.b32encode(hashlib.sha256(data).digest()).decode().lower()[:52]
    path = directory / GRAPH / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def worker(tmp_path):
    """Directories of a worker, by name."""

    def make(name: str) -> dict[str, str]:
        there = tmp_path / name / "torchinductor"
        return {"inductor": str(there), "triton": str(there / "triton")}

    return make


@pytest.fixture
def first(worker, settings, identity):
    """A worker with a kernel, a graph, a tuning result and a library, all of them known."""
    made = worker("rank0")
    inductor = Path(made["inductor"])
    kernel(Path(made["triton"]))
    graph(inductor)
    (inductor / "ab").mkdir()
    (inductor / "ab/c1.best_config").write_text('{"n": 1}')
    (inductor / "ab/c2.py").write_text("x = 1\n")
    (inductor / "ab/c3.main.cpp").write_text("int x;")
    assert publish(settings, identity, made, adopt=True).reason == "published"
    return made


def tree(directories: dict[str, str]) -> dict[str, bytes]:
    """Every file of the compilers'."""
    top = Path(directories["inductor"])
    return {
        str(path.relative_to(top)): path.read_bytes()
        for path in sorted(top.rglob("*"))
        if path.is_file() and ".cachehome" not in path.parts
    }


def number(directories: dict[str, str], path: str) -> int:
    return os.stat(os.path.join(directories["inductor"], path)).st_ino


def test_what_is_linked_and_what_is_not(first, worker, identity):
    second = worker("rank1")
    (record,) = clone(identity, restored(first), [second])
    assert (record.outcome, record.reason, record.entries, record.files) == ("hit", "cloned", 5, 7)
    shared = {path for path in tree(first) if number(first, path) == number(second, path)}
    assert {path.split("/")[0] for path in shared} == {"fxgraph", "triton"}
    assert f"triton/{KERNEL}/__grp__k.json" not in shared
    group = json.loads(tree(second)[f"triton/{KERNEL}/__grp__k.json"])["child_paths"]
    assert {os.path.dirname(path) for path in group.values()} == {f"{second['triton']}/{KERNEL}"}
    for path in tree(first).keys() - {f"triton/{KERNEL}/__grp__k.json"}:
        assert tree(first)[path] == tree(second)[path]


def test_all_is_known_over_there(first, worker, settings, identity):
    """Nothing has to be read or hashed again, and nothing is new."""
    second = worker("rank1")
    clone(identity, restored(first), [second])
    for name, directory in second.items():
        table = Live(directory).table()
        for entry in scan(families.catalogue()[name], directory).values():
            assert all(table.known(entry.name + file.suffix, file) for file in entry.files), entry.name
    assert publish(settings, identity, second).reason == "unchanged"


def test_nobody_writes_into_the_file_of_another(first, worker, identity):
    """What is written in place is a copy; what is linked is only replaced, moved or removed."""
    others = [worker(f"rank{number}") for number in range(1, 4)]
    assert all(clone(identity, restored(first), others))
    before = tree(first)
    for path in before:
        target = os.path.join(others[0]["inductor"], path)
        if "fxgraph" in path or ("triton" in path and "__grp__" not in path):
            with open(f"{target}.tmp", "w") as file:
                file.write("other bytes")
            os.replace(f"{target}.tmp", target)
        else:
            with open(target, "r+b") as file:
                file.write(b"other bytes")
    for name, entry in (("triton", KERNEL), ("inductor", os.path.dirname(GRAPH))):
        Live(others[1][name]).set_aside(entry, [], tree=True)
    shutil.rmtree(others[2]["inductor"])
    assert tree(first) == before


def full(directory: Path) -> None:
    (directory / "k").mkdir(parents=True)


def linked(directory: Path) -> None:
    """A link through which a clone would write elsewhere."""
    elsewhere = directory.parent / "elsewhere"
    elsewhere.mkdir(parents=True)
    directory.mkdir()
    (directory / "fxgraph").symlink_to(elsewhere)


def halved(directory: Path) -> None:
    """Half a kernel, which only a restore sets right."""
    (kernel(directory / "triton") / "k.cubin").unlink()


@pytest.mark.parametrize("before", [full, linked, halved])
def test_what_holds_anything_is_a_restore_s_matter(first, worker, identity, before):
    second = worker("rank1")
    Path(second["inductor"]).parent.mkdir(parents=True)
    before(Path(second["inductor"]))
    assert clone(identity, restored(first), [second]) == [None]
    assert not os.listdir(Path(second["inductor"]).parent / "elsewhere") if before is linked else True


def test_what_nobody_has_verified_is_a_restore_s_matter(first, worker, settings, identity):
    """A restore that found the files there already has not looked into them."""
    second = worker("rank1")
    restore(settings, identity, first)
    for path in Path(first["inductor"]).rglob(".cachehome/files"):
        path.unlink()
    with pytest.raises(ValueError, match="nobody has verified"):
        clone(identity, restored(first), [second])


def replaced_file(tree: Path) -> None:
    (tree / "tmp").write_bytes(b"other bytes")
    os.replace(tree / "tmp", tree / "k.cubin")


def cut_file(tree: Path) -> None:
    os.truncate(tree / "k.cubin", 3)


def fifo(tree: Path) -> None:
    (tree / "k.cubin").unlink()
    os.mkfifo(tree / "k.cubin")


def link(tree: Path) -> None:
    (tree / "k.cubin").unlink()
    (tree / "k.cubin").symlink_to("/etc/passwd")


def another_kernel(tree: Path) -> None:
    tree.rename(tree.parent / "aside")
    kernel(tree.parent / "other", KERNEL)
    tree.symlink_to(tree.parent / "other" / KERNEL)


def other_group(tree: Path) -> None:
    paths = {child: str(tree / child) for child in ("k.cubin", "k.json")}
    (tree / "__grp__k.json").write_text(json.dumps({"child_paths": dict(reversed(paths.items()))}))


@pytest.mark.parametrize("happen", [replaced_file, cut_file, fifo, link, another_kernel, other_group])
def test_what_changes_between_restore_and_clone_does_not_come(
    first, worker, settings, identity, happen, tmp_path
):
    """A worker is at work in the directory that is cloned from."""
    source, second = worker("rank0-again"), worker("rank1")
    targets = []
    restore(settings, identity, source, then=lambda record, found: targets.extend(found) or record)
    happen(Path(source["triton"], KERNEL))
    (record,) = clone(identity, targets, [second])
    assert record.outcome == "hit"
    assert not any(KERNEL in path for path in tree(second))
    assert not any(KERNEL in path for path in Live(second["triton"]).table().rows())
    assert tree(second)["ab/c2.py"] == b"x = 1\n"


def test_a_clone_tells_what_it_brought(first, worker, identity):
    second = worker("rank1")
    (record,) = clone(identity, restored(first), [second])
    assert record.details["families"] == {"inductor": 4, "triton": 1}
    note = json.loads(Path(second["inductor"], ".cachehome/restored").read_text())
    assert (note["outcome"], note["reason"]) == ("hit", "cloned")


def test_what_has_changed_since_it_was_verified_does_not_come(first, worker, identity):
    Path(first["triton"], KERNEL, "k.json").write_text('{"changed": 1}')
    Path(first["inductor"], "ab/c2.py").write_text("x = 2\n")
    second = worker("rank1")
    clone(identity, restored(first), [second])
    assert set(tree(second)) == {*(p for p in tree(first) if "c1" in p or "c3" in p or "fxgraph" in p)}


def test_what_is_not_ours_to_fill_is_left_alone(first, worker, settings, identity):
    from cachehome.identity import Identity

    foreign, open_to_all, fine = (worker(f"rank{number}") for number in range(1, 4))
    kernel(Path(foreign["triton"]))
    publish(settings, Identity({"test": 2}, {}), foreign, adopt=True)
    os.makedirs(open_to_all["inductor"])
    os.chmod(open_to_all["inductor"], 0o777)
    found = clone(identity, restored(first), [foreign, open_to_all, fine])
    assert [record and record.outcome for record in found] == [None, None, "hit"]
    with pytest.raises(ValueError, match="not restored for this build"):
        clone(Identity({"test": 2}, {}), restored(first), [fine])


def test_another_file_system_gets_copies(first, identity):
    shm = "/dev/shm"
    if not os.access(shm, os.W_OK) or os.stat(shm).st_dev == os.stat(first["inductor"]).st_dev:
        pytest.skip("needs a second file system")
    with tempfile.TemporaryDirectory(dir=shm) as directory:
        second = {"inductor": f"{directory}/t", "triton": f"{directory}/t/triton"}
        assert clone(identity, restored(first), [second])[0].files == 7
        assert {path: data for path, data in tree(second).items() if "__grp__" not in path} == {
            path: data for path, data in tree(first).items() if "__grp__" not in path
        }


def test_a_file_with_as_many_links_as_it_bears_is_copied(first, worker, identity, tmp_path):
    source = os.path.join(first["triton"], KERNEL, "k.cubin")
    (tmp_path / "links").mkdir()
    if exhausted(source, tmp_path / "links") != errno.EMLINK:
        pytest.skip("this file system bears more links than a test wants to make")
    second = worker("rank1")
    clone(identity, restored(first), [second])
    path = f"triton/{KERNEL}/k.cubin"
    assert number(first, path) != number(second, path)
    assert tree(first)[path] == tree(second)[path]


def exhausted(source: str, directory: Path) -> int:
    """Link *source* until that fails; the number of the error."""
    try:
        for n in range(70_000):
            os.link(source, directory / str(n))
    except OSError as error:
        return error.errno or 0
    return 0


# -- real compilers

TRITON = """
from cachehome.demo.kernels import KERNELS
for kernel in KERNELS[:2]:
    kernel.compile()
"""
INDUCTOR = """
import torch
from torch._dynamo.utils import counters
torch.manual_seed(0)
x = torch.randn(64, 64)
compiled = torch.compile(lambda x: (torch.nn.functional.gelu(x) * 2).sum(dim=1))
assert torch.allclose(compiled(x), (torch.nn.functional.gelu(x) * 2).sum(dim=1), atol=1e-4)
print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


def run(code: str, directories: dict[str, str], **environ: str) -> str:
    root = str(Path(__file__).parents[2])
    variables = {
        "TORCHINDUCTOR_CACHE_DIR": directories["inductor"],
        "TRITON_CACHE_DIR": directories["triton"],
        "PYTHONPATH": root,
    }
    ended = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | variables | environ,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def restored_and_cloned(code: str, worker, settings, identity) -> tuple[dict[str, str], dict[str, str]]:
    """Two workers with what *code* compiles: one was restored, the other is its clone."""
    seed, one, two = (worker(name) for name in ("seed", "rank0", "rank1"))
    run(code, seed)
    assert publish(settings, identity, seed, adopt=True).reason == "published"
    assert restore(settings, identity, one).outcome == "hit"
    assert clone(identity, restored(one), [two])[0]
    return one, two


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_triton_replaces_what_it_compiles_again(worker, settings, identity):
    pytest.importorskip("triton")
    one, two = restored_and_cloned(TRITON, worker, settings, identity)
    before = tree(one)
    numbers = {path: number(two, path) for path in tree(two)}
    run(TRITON, two)
    assert {path: number(two, path) for path in tree(two)} == numbers, "the clone is warm"
    run(TRITON, two, TRITON_ALWAYS_COMPILE="1")
    replaced = [path for path in numbers if number(two, path) != numbers[path]]
    assert {path.rpartition(".")[2] for path in replaced} >= {"cubin", "ptx", "json", "llir"}
    assert tree(one) == before


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_inductor_replaces_what_it_compiles_again(worker, settings, identity):
    pytest.importorskip("torch")
    one, two = restored_and_cloned(INDUCTOR, worker, settings, identity)
    before = tree(one)
    assert any("fxgraph" in path for path in before)
    assert run(INDUCTOR, two).split() == ["1", "0"], "the clone is warm"
    # Cut short, as a full disk leaves them: torch compiles again, and writes under the same keys.
    for path in [path for path in tree(two) if path.startswith(("fxgraph", "aotautograd"))]:
        target = Path(two["inductor"], path)
        target.unlink()
        target.write_bytes(b"cut")
    for path in [path for path in tree(two) if path.endswith(".so")]:
        Path(two["inductor"], path).unlink()
    assert run(INDUCTOR, two).split() == ["0", "1"]
    assert tree(one) == before
