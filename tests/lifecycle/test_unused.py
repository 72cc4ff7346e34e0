"""`run` says at its end that what it restored was not used, if the counters are on."""

from __future__ import annotations

import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

JOB = """
import cachehome.activate, os, sys
if sys.argv[1:]:
    os.environ["TRITON_CACHE_DIR"] = sys.argv[1]
from cachehome.demo.kernels import KERNELS
KERNELS[0].compile()
"""


def test_a_directory_that_the_job_replaced(node):
    pytest.importorskip("triton")
    job = node.script(JOB)
    on = {"CACHEHOME_DIAGNOSTICS": "1", "CACHEHOME_REPORT_DIR": "-"}
    python = ["run", "--", sys.executable, "-W", "ignore", job]
    first = node.run(*python, **on)
    assert "publish: hit" in first.stderr
    node.wipe()
    assert "WARNING" not in node.run(*python, **on).stderr
    assert next(node.home.rglob("kernel_seconds.json")), "what was measured there came along"
    node.wipe()
    elsewhere = str(node.directory / "elsewhere")
    said = node.run(*python, elsewhere, **on).stderr
    assert "WARNING: inert, nothing of what was restored was used: " in said
    assert f"but triton used {elsewhere}" in said
    node.wipe()
    (node.directory / "elsewhere").rename(node.directory / "gone")
    assert "WARNING" not in node.run(*python, elsewhere, CACHEHOME_REPORT_DIR="-").stderr, (
        "diagnostics are off"
    )
