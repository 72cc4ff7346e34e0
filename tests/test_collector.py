from __future__ import annotations

import subprocess
import sys

_TRANSFERS = """
import gc, threading
from cachehome.collector import uncollected

def transfer():
    with uncollected():
        print(gc.isenabled())

transfer()
thread = threading.Thread(target=transfer)
thread.start()
thread.join()
print(gc.isenabled())
"""


def test_the_collector_is_off_during_a_transfer_where_nobody_else_needs_it() -> None:
    """One that hangs in a dead store is left behind in its thread, and would leave it off for good."""
    out = subprocess.run([sys.executable, "-c", _TRANSFERS], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "True", "True"]
