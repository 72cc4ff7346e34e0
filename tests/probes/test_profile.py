"""What of a command line is the job. The worked examples of docs/explanation/identity.md are these."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from cachehome.probes import profile

Part = dict[str, object]


def _of(command: str, **environ: str) -> Part:
    return profile.describe(shlex.split(command), environ)[0]


EXAMPLES: dict[str, tuple[str, Part]] = {
    "vllm serve": (
        (
            "vllm serve Qwen/Qwen3-8B --host 0.0.0.0 --port 8000 -tp 8 --max-model-len 32768 --served-model-name a b"
            " --uvicorn-log-level warning --gpu_memory_utilization=0.9 --api-key hunter2"
        ),
        {
            "program": "vllm serve",
            "arguments": ["Qwen/Qwen3-8B", "--gpu-memory-utilization 0.9", "--max-model-len 32768"],
            "layout": {"tensor_parallel": "8"},
        },
    ),
    "vllm by its module": (
        (
            "python -m vllm.entrypoints.openai.api_server --model /models/Qwen3-8B --data-parallel-size 4"
            " --data-parallel-rank 3 --data-parallel-address 10.0.0.1 --enforce-eager"
        ),
        {
            "program": "vllm serve",
            "arguments": ["--enforce-eager", "--model Qwen3-8B"],
            "layout": {"data_parallel": "4"},
        },
    ),
    "sglang.launch_server": (
        (
            "python3 -m sglang.launch_server --model-path /models/Qwen3-8B --tp 4 --nnodes 2 --node-rank 1"
            " --dist-init-addr 10.0.0.3:5000 --host 0.0.0.0 --port 30000 --mem-fraction-static 0.8 --enable-metrics"
        ),
        {
            "program": "sglang serve",
            "arguments": ["--mem-fraction-static 0.8", "--model-path Qwen3-8B"],
            "layout": {"nodes": "2", "tensor_parallel": "4"},
        },
    ),
    "torchrun": (
        (
            "torchrun --nnodes 2 --nproc-per-node=8 --node_rank 0 --rdzv-endpoint=head:29500 --rdzv_id 77 /app/train.py"
            " --lr 1e-4 --bf16 --output_dir /out/77 --run-name exp-20261130-1201 --seed 3"
        ),
        {
            "program": "torchrun > train.py",
            "arguments": ["--bf16", "--lr 1e-4"],
            "layout": {"nodes": "2", "processes_per_node": "8"},
        },
    ),
    "torchrun by its module, a module as script": (
        "python -m torch.distributed.run --standalone --nproc_per_node 8 -m mypkg.train --model.dim=512",
        {
            "program": "torchrun > -m mypkg.train",
            "arguments": ["--model.dim 512"],
            "layout": {"processes_per_node": "8"},
        },
    ),
    "torchrun without Python": (
        "torchrun --nproc-per-node 8 --no-python ./run.sh --x 1",
        {"program": "torchrun > run.sh", "arguments": ["--x 1"], "layout": {"processes_per_node": "8"}},
    ),
    "accelerate": (
        (
            "accelerate launch --num_processes 16 --num_machines 2 --machine_rank 1 --main_process_ip 10.0.0.1"
            " --mixed_precision bf16 train.py --lr 1"
        ),
        {
            "program": "accelerate launch > train.py",
            "arguments": ["--mixed-precision bf16", "--lr 1"],
            "layout": {"nodes": "2", "processes": "16"},
        },
    ),
    "deepspeed": (
        "deepspeed --hostfile /job/hosts --num_gpus 8 train.py --zero-stage 3",
        {
            "program": "deepspeed > train.py",
            "arguments": ["--zero-stage 3"],
            "layout": {"processes_per_node": "8"},
        },
    ),
    "ray job submit": (
        (
            "ray job submit --address http://10.1.2.3:8265 --working-dir . --runtime-env-json '{\"a\": 1}' --"
            " python train.py --actor-num-nodes 4 --rollout-num-gpus 8"
        ),
        {"program": "train.py", "arguments": ["--actor-num-nodes 4", "--rollout-num-gpus 8"]},
    ),
    "the entry point itself, as Ray runs it": (
        "python /tmp/ray/session_2026/runtime_resources/pkg/train.py --actor-num-nodes 4 --rollout-num-gpus 8",
        {"program": "train.py", "arguments": ["--actor-num-nodes 4", "--rollout-num-gpus 8"]},
    ),
    "hydra": (
        "python train.py +experiment=gpt optim.lr=0.1 trainer.default_root_dir=/out hydra.run.dir=/x lora.rank=8",
        {"program": "train.py", "arguments": ["+experiment gpt", "lora.rank 8", "optim.lr 0.1"]},
    ),
    "megatron": (
        (
            "torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 4"
            " --pipeline-model-parallel-size 2 --hidden-size 4096 --data-path 0.5 /data/a 0.5 /data/b --load /ckpt"
            " --save /ckpt --tensorboard-dir /tb"
        ),
        {
            "program": "torchrun > pretrain_gpt.py",
            "arguments": ["--hidden-size 4096"],
            "layout": {"pipeline_parallel": "2", "processes_per_node": "8", "tensor_parallel": "4"},
        },
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_examples(name: str) -> None:
    command, expected = EXAMPLES[name]
    assert _of(command) == expected


SAME = {
    "spelling": ("train.py --max_len=5", "train.py --max-len 5"),
    "order of options": ("train.py --a 1 --b 2", "train.py --b 2 --a 1"),
    "place of the script": ("python /a/b/train.py --x", "python ../train.py --x"),
    "place of Python": ("/usr/bin/python3.11 -u train.py", "python train.py"),
    "console script by its Python": ("/venv/bin/python /venv/bin/vllm serve m", "vllm serve m"),
    "port": ("vllm serve m --port 1", "vllm serve m --port=2"),
    "rank of a node": ("torchrun --node-rank 0 t.py", "torchrun --node-rank 7 t.py"),
    "a rank that is said with the world": ("t.py --rank 1 --world-size 8", "t.py --rank 2 --world-size 8"),
    "address in an unknown option": ("t.py --peer 10.0.0.1:80", "t.py --peer 10.9.9.9:81"),
    "address in a URL": ("t.py --init tcp://a:1", "t.py --init tcp://b:2"),
    "temporary directory": ("t.py --x /tmp/a1/model", "t.py --x /tmp/b2/model"),
    "model in the hub's cache": (
        "t.py --m /root/.cache/huggingface/hub/models--Q--q/snapshots/aaaa",
        "t.py --m /data/hub/models--Q--q/snapshots/aaaa",
    ),
    "secret": ("t.py --hf-token aaaaaa", "t.py --hf-token bbbbbb"),
    "JSON": ('t.py --o \'{"b": 1, "a": 2}\'', 't.py --o \'{"a":2,"b":1}\''),
    "launch time": ("t.py --name-of-it x-2026-11-30_12-01-07", "t.py --name-of-it x-2026-12-01_10-00-00"),
}
OTHER = {
    "unknown option": ("t.py --new-thing 1", "t.py --new-thing 2"),
    "rank of LoRA": ("t.py --rank 8", "t.py --rank 16"),
    "tensor parallel": ("vllm serve m -tp 4", "vllm serve m -tp 8"),
    "processes on a node": ("torchrun --nproc-per-node 4 t.py", "torchrun --nproc-per-node 8 t.py"),
    "nodes": ("torchrun --nnodes 1 t.py", "torchrun --nnodes 2 t.py"),
    "model": ("vllm serve Q/a", "vllm serve Q/b"),
    "model of another owner": ("vllm serve Q/a", "vllm serve R/a"),
    "length": ("vllm serve m --max-model-len 1", "vllm serve m --max-model-len 2"),
    "last one wins": ("t.py --a 1 --a 2", "t.py --a 2 --a 1"),
    "positional": ("t.py a b", "t.py b a"),
    "script": ("python a.py", "python b.py"),
    "module": ("python -m a", "python -m b"),
    "assertions": ("python -O t.py", "python t.py"),
    "switch": ("t.py --bf16", "t.py"),
    "code": ("python -c 'import a'", "python -c 'import b'"),
    "learning rate": ("t.py --lr 1", "t.py --lr 2"),
    "negative number": ("t.py --x -1", "t.py --x -2"),
}


@pytest.mark.parametrize("case", SAME)
def test_one_job(case: str) -> None:
    one, two = SAME[case]
    assert _of(one) == _of(two)


@pytest.mark.parametrize("case", OTHER)
def test_two_jobs(case: str) -> None:
    one, two = OTHER[case]
    assert _of(one) != _of(two)


def test_what_was_dropped_is_told_with_its_reason() -> None:
    _, left_out = profile.describe(["t.py", "--port", "80", "--output-dir", "/x", "--api-key", "k"], {})
    assert left_out == {
        "command.--port": "port",
        "command.--output-dir": "location",
        "command secrets": "1, by name or by shape: neither name nor value is kept",
    }


def test_configuration_files_count_by_content(tmp_path: Path) -> None:
    for name, text in (("a", "x: 1"), ("b", "x: 1"), ("c", "x: 2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.yaml").write_text(text)
    a, b, c = (_of(f"train.py --config {tmp_path}/{name}/job.yaml") for name in "abc")
    assert a == b != c
    assert list(a["files"]) == ["job.yaml"]  # type: ignore[call-overload]
    assert _of(f"train.py --report {tmp_path}/a/job.yaml").get("files") is None


def test_a_model_directory_counts_by_its_configuration(tmp_path: Path) -> None:
    model = tmp_path / "Qwen3-8B"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"hidden_size": 4096}))
    one = _of(f"vllm serve {model}")
    (model / "config.json").write_text(json.dumps({"hidden_size": 8192}))
    two = _of(f"vllm serve {model}")
    assert one["arguments"] == two["arguments"] == ["Qwen3-8B"]
    assert one["files"] != two["files"]


def test_files_that_were_chosen(tmp_path: Path) -> None:
    path = tmp_path / "shapes.txt"
    path.write_text("1 2 3")
    assert "files" not in profile.describe(["t.py"], {})[0]
    assert list(profile.describe(["t.py"], {}, files=[str(path)])[0]["files"]) == ["shapes.txt"]


@pytest.mark.parametrize("name", ["WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE"])
def test_the_layout_that_a_launcher_exported(name: str) -> None:
    assert _of("python t.py", **{name: "16"})["layout"] == {"world_size": "16"}
    assert _of("torchrun --nproc-per-node 8 t.py", **{name: "1"})["layout"] == {"processes_per_node": "8"}
    assert "layout" not in _of("python t.py", **{name: "many"})


@pytest.mark.parametrize(
    "command",
    [
        "",
        "python",
        "python -m",
        "-",
        "--",
        "torchrun",
        "vllm",
        "t.py -- --x",
        "t.py --x=",
        "t.py '{'",
        "t.py \0",
    ],
)
def test_odd_commands_have_a_profile(command: str) -> None:
    assert json.dumps(profile.describe(command.split(" ") if "\0" in command else shlex.split(command), {}))


def test_every_line_of_the_table_has_a_reason() -> None:
    seen = set()
    for program, lines in profile.flags().items():
        for flag in lines:
            assert flag.reason
            assert flag.values in ("0", "1", "+", "?"), flag
            assert flag.treatment in ("drop", "keep", "rank") or flag.treatment.startswith("layout:"), flag
            for name in flag.names:
                assert name == profile._spelled(name), name
                assert (program, name) not in seen, name
                seen.add((program, name))
