"""What keys of graphs are made of, and how two of them differ."""

from __future__ import annotations

from pathlib import Path

from cachehome.observe.graphs import LARGEST, Graphs

BASE = [
    "[aaaa] gm: GraphModule()\n\n\n\ndef forward(self):\n    return [x] y: z",
    "[bbbb] example_inputs[0]: TensorMetadata(dtype=torch.float32, shape=torch.Size([4, 32]), stride=(32, 1))",
    "[cccc] inductor_config[size_asserts]: True",
    "[dddd] cpp_runtime_thread_count: 2",
    "[eeee] fx_kwargs[get_decomp_fn]: <function f at 0x7f7b>",
]


def changed(number: int, line: str) -> list[str]:
    return [*BASE[:number], line, *BASE[number + 1 :]]


def test_differences_in_words(tmp_path: Path) -> None:
    graphs = Graphs(str(tmp_path))
    assert graphs.look_up("k0", BASE) == []
    shape = BASE[1].replace("bbbb", "ffff").replace("4, 32", "8, 32")
    assert graphs.look_up("k1", changed(1, shape)) == ["input 0: float32[4, 32] became float32[8, 32]"]
    assert graphs.look_up("k2", changed(2, "[9] inductor_config[size_asserts]: False")) == [
        "Inductor setting size_asserts: True became False"
    ]
    assert graphs.look_up("k3", changed(3, "[9] cpp_runtime_thread_count: 1")) == ["thread count: 2 became 1"]
    assert graphs.look_up("k4", changed(4, "[9] fx_kwargs[get_decomp_fn]: <function g at 0x1>")) == [
        "compile option get_decomp_fn"
    ]
    assert graphs.look_up("k5", ["[z] gm: other", *BASE[1:]]) == ["the graph itself"]
    assert graphs.look_up("k6", BASE[:-1]) == ["compile option get_decomp_fn: gone"]
    assert graphs.look_up("k1", []) == []


def test_the_next_process_knows_them(tmp_path: Path) -> None:
    first = Graphs(str(tmp_path))
    first.look_up("k0", BASE)
    first.look_up("k1", changed(3, "[9] cpp_runtime_thread_count: 1"))
    first.look_up("k2", BASE[:-1])
    size = (tmp_path / ".cachehome" / "graphs.jsonl").stat().st_size
    second = Graphs(str(tmp_path))
    assert second.known == first.known
    assert second.look_up("k9", changed(3, "[8] cpp_runtime_thread_count: 3")) in (
        ["thread count: 1 became 3"],
        ["thread count: 2 became 3"],
    )
    assert (tmp_path / ".cachehome" / "graphs.jsonl").stat().st_size < size + 150  # differences only


def test_it_stops_growing_and_reads_rubbish(tmp_path: Path) -> None:
    path = tmp_path / ".cachehome" / "graphs.jsonl"
    path.parent.mkdir()
    path.write_bytes(b"\xff\n[]\n{}\n" + b"x" * LARGEST)
    graphs = Graphs(str(tmp_path))
    assert graphs.known == {}
    size = path.stat().st_size
    graphs.look_up("k", BASE)
    assert path.stat().st_size == size
    assert Graphs("/proc/nowhere").look_up("k", BASE) == []
