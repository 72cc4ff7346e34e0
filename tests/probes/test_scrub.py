"""Secrets leave no trace, and what is no secret stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachehome.probes import scrub

NAMES = (
    "HF_TOKEN OPENAI_API_KEY aws_secret_access_key DB_PASSWORD --hf-token --api-key WANDB_API_KEY GITHUB_PAT"
)
NO_NAMES = (
    "MAX_TOKENS PAD_TOKEN_ID TORCH_COMPILE_CACHE_KEY_TAG --num-tokens KEYBOARD TOKENIZERS_PARALLELISM PATTERN"
)


@pytest.mark.parametrize("name", NAMES.split())
def test_names_of_secrets(name: str) -> None:
    assert scrub.secret_name(name, "x")


@pytest.mark.parametrize("name", NO_NAMES.split())
def test_names_of_no_secrets(name: str) -> None:
    assert not scrub.secret_name(name, "x")


def test_a_key_with_a_long_value_is_a_secret() -> None:
    assert scrub.secret_name("SOME_KEY", "0123456789abcdef")
    assert not scrub.secret_name("SORT_KEY", "name")


@pytest.mark.parametrize(
    "value",
    [
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "x hf_AbCdEfGhIjKlMnOpQrStUvWx y",
        "sk-proj-abcdefghijklmnop",
        "AKIAIOSFODNN7EXAMPLE",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.sig",
        "https://user:password1@host/x",
        "Authorization: Bearer abcdefgh12",
        "wJalrXUtnFEMI7K7MDENGbPxRfiCYEXAMPLEKEY1",
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        '{"db_password": "hunter2"}',
    ],
)
def test_shapes_of_secrets(value: str) -> None:
    assert scrub.secret_shape(value)
    assert scrub.text(value) == ("<secret>", ["secret"])


@pytest.mark.parametrize(
    "value",
    [
        "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8",
        "DeepseekV3ForCausalLMNextN",
        "1f0c9b2d4e6f8a0b1c2d3e4f5a6b7c8d9e0f1a2b",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "--use_fast_math -O3 -gencode=arch=compute_90a,code=sm_90a",
        "max-autotune-no-cudagraphs",
        "expandable_segments:True,max_split_size_mb:512",
        "9.0a+PTX",
        "TORCH_SYMMMEM_NVSHMEM",
    ],
)
def test_shapes_of_no_secrets(value: str) -> None:
    assert scrub.text(value) == (value, [])


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("-I/opt/x/include -L/opt/lib -O3", "-Iinclude -Llib -O3"),
        ("/a/b:/c/d", "b:d"),
        ("a/b", "a/b"),
        ("1/2", "1/2"),
        ("~/x/y", "y"),
        ("/", "/"),
        ("10.0.0.1", "<address>"),
        ("10.0.0.1:29500", "<address>"),
        ("[fe80::1%eth0]:80", "<address>"),
        ("2001:db8:0:1:1:1:1:1", "<address>"),
        ("tcp://head-0:29500", "<address>"),
        ("http://x.y/z?q", "<address>"),
        ("s3://bucket/models/q", "q"),
        ("file:///models/q", "q"),
        ("1.2.3", "1.2.3"),
        ("256.1.1.1", "256.1.1.1"),
        ("6f1c0b3e-0000-4000-8000-1234567890ab", "<uuid>"),
        ("run-20261130-120107", "run-<time>"),
        ("20261130", "20261130"),
        ("/root/.cache/huggingface/hub/models--Qwen--Qwen3-8B/snapshots/abc123/", "Qwen/Qwen3-8B"),
        ("a=/x/y,b=/z", "a=y,b=z"),
    ],
)
def test_what_differs_between_pods_is_taken_out(value: str, kept: str) -> None:
    assert scrub.text(value)[0] == kept


def test_names_of_this_pod() -> None:
    environ = {"HOSTNAME": "worker-77", "USER": "root", "SLURM_JOB_ID": "4711123"}
    assert scrub.text("at worker-77:80 job4711123 job-4711123 root", environ)[0] == (
        "at <HOSTNAME>:80 job4711123 job-<SLURM_JOB_ID> root"
    )


@given(st.text(max_size=300))
def test_any_text(value: str) -> None:
    kept, taken = scrub.text(value)
    assert isinstance(kept, str)
    assert (kept == value) == (not taken) or "path" in taken
    scrub.secret_name(value, value)


def test_a_command_in_a_message() -> None:
    words = ["env", "HF_TOKEN=hunter2", "vllm", "--api-key", "hunter2", "--x", "a b", "--hf-token=hunter2"]
    shown = "env HF_TOKEN=<secret> vllm --api-key <secret> --x 'a b' --hf-token=<secret>"
    assert scrub.command([*words, "sk-abcdefghijklmnop"]) == f"{shown} <secret>"
