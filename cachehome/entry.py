"""The entry point of the installed command, and of `python -m cachehome`."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from cachehome.sync import ahead


def console() -> NoReturn:
    """Run the verb of the command line, and end at once: to take apart what was imported would take the interpreter as
    long as to start."""
    try:
        ahead.begin(sys.argv[1:])
        import atexit

        from cachehome import cli, threads

        code = cli.main(guard=True)
    except KeyboardInterrupt:
        os._exit(130)
    if not threads.alone() or sys.getprofile() or sys.gettrace():
        sys.exit(code)
    atexit._run_exitfuncs()  # noqa: SLF001 - as multiprocessing does
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, OSError, ValueError):  # closed, or nobody reads on
            continue
    os._exit(code)
