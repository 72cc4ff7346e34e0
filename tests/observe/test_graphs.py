"""What keys of graphs are made of, and how two of them differ."""

from __future__ import annotations

from pathlib import Path

from cachehome import families
from cachehome.observe.graphs import DIRECTORY, LARGEST, Graphs, differences, parts_of
from cachehome.sync.portable import check
from cachehome.sync.scan import scan

BASE = [
    "[aaaa] gm: GraphModule()\n\n\n\ndef forward(self):\n    return [x] y: z",
    "[bbbb] example_inputs[0]: TensorMetadata(dtype=torch.float32, shape=torch.Size([4, 32]), stride=(32, 1))",
    "[cccc] inductor_config[size_asserts]: True",
    "[dddd] cpp_runtime_thread_count: 2",
    "[eeee] fx_kwargs[get_decomp_fn]: <function f at 0x7f7b>",
]


def changed(number: int, line: str) -> list[str]:
    return [*BASE[:number], line, *BASE[number + 1 :]]


def test_differences_in_words() -> None:
    def told(components: list[str]) -> list[str]:
        return differences(parts_of(components), parts_of(BASE))

    shape = BASE[1].replace("bbbb", "ffff").replace("4, 32", "8, 32")
    assert told(BASE) == []
    assert told(changed(1, shape)) == ["input 0: float32[4, 32] became float32[8, 32]"]
    assert told(changed(2, "[9] inductor_config[size_asserts]: False")) == [
        "Inductor setting size_asserts: True became False"
    ]
    assert told(changed(3, "[9] cpp_runtime_thread_count: 1")) == ["thread count: 2 became 1"]
    assert told(changed(4, "[9] fx_kwargs[get_decomp_fn]: <function g at 0x1>")) == [
        "compile option get_decomp_fn"
    ]
    assert told(["[z] gm: other", *BASE[1:]]) == ["the graph itself"]
    assert told(BASE[:-1]) == ["compile option get_decomp_fn: gone"]


def test_the_next_process_knows_them(tmp_path: Path) -> None:
    first = Graphs(str(tmp_path))
    assert first.nearest(parts_of(BASE)) == ([], None)
    first.keep("k0", parts_of(BASE), {"thread count": "2"})
    one = parts_of(changed(3, "[9] cpp_runtime_thread_count: 1"))
    first.keep("k1", one, {"thread count": "1"})
    first.keep("k2", parts_of(BASE[:-1]), None)
    assert first.nearest(one) == ([], None), "a start is compared with what was there before it"
    second = Graphs(str(tmp_path))
    assert second.nearest(one) == ([], {"thread count": "1"})
    three = parts_of(changed(3, "[8] cpp_runtime_thread_count: 3"))
    assert second.nearest(three) == (["thread count: 2 became 3"], {"thread count": "2"})
    found = [second.read(key) for key in ("k0", "k1", "k2", "k3")]
    assert [known and known.made for known in found] == [
        {"thread count": "2"}, {"thread count": "1"}, None, None,
    ]  # fmt: skip


def test_settings_lie_there_once_and_nothing_is_written_over(tmp_path: Path) -> None:
    live = tmp_path / DIRECTORY
    graphs = Graphs(str(tmp_path))
    graphs.keep("k0", parts_of(BASE), {})
    graphs.keep("k1", parts_of(changed(3, "[9] cpp_runtime_thread_count: 1")), {})
    assert len(list(live.glob("settings-*.json"))) == 1
    before = {path: path.read_bytes() for path in live.iterdir()}
    Graphs(str(tmp_path)).keep("k0", parts_of(BASE[1:]), {"thread count": "9"})
    assert {path: path.read_bytes() for path in live.iterdir()} == before
    rows = families.catalogue()["inductor"]
    assert {entry.removeprefix(f"{DIRECTORY}/") for entry in scan(rows, str(tmp_path))} == {
        path.name for path in before
    }
    assert all(check(f"{DIRECTORY}/{path.name}", data) == "" for path, data in before.items())


def test_secrets_leave_no_trace(tmp_path: Path) -> None:
    secret = "hf_" + "aB3" * 8
    lines = ["[1] inductor_config[hub_token]: 1234", f"[2] inductor_config[other]: {secret}", *BASE]
    Graphs(str(tmp_path)).keep("k0", parts_of(lines), {})
    assert parts_of(lines) == parts_of(BASE)
    assert not any(secret.encode() in path.read_bytes() for path in (tmp_path / DIRECTORY).iterdir())


def test_it_stops_growing_and_reads_rubbish(tmp_path: Path) -> None:
    live = tmp_path / DIRECTORY
    live.mkdir()
    for number, rubbish in enumerate(
        (b"\xff", b"[]", b"{}", b'{"parts": {"a": 7}, "shared": "../x"}', b"[" * 99_999)
    ):
        (live / f"bad{number}.json").write_bytes(rubbish)
    (live / "large.json").write_bytes(b"x" * LARGEST)
    graphs = Graphs(str(tmp_path))
    assert graphs.nearest(parts_of(BASE)) == ([], None)
    graphs.keep("k", parts_of(BASE), {})
    assert not (live / "k.json").exists()
    for nowhere in (Graphs("/proc/nowhere"), Graphs(str(live / "large.json"))):
        nowhere.keep("k", parts_of(BASE), {})
        nowhere.keep("../k", parts_of(BASE), {})
        assert nowhere.read("k") is None


def test_a_part_that_is_no_utf8_can_be_published(tmp_path: Path) -> None:
    lines = [*BASE, "[9] inductor_config[caf\udce9]: 1", "[9] fx_kwargs[\ud800]: 1"]
    Graphs(str(tmp_path)).keep("k0", parts_of(lines), {"TORCHINDUCTOR_NOTE": "\udce9"})
    found = list((tmp_path / DIRECTORY).iterdir())
    assert len(found) == 2
    assert all(check(f"{DIRECTORY}/{path.name}", path.read_bytes()) == "" for path in found)
    assert Graphs(str(tmp_path)).nearest(parts_of(lines))[0] == []
