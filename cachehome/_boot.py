"""The start-up hook: what `cachehome.pth` and `cachehome.start` call in every Python process of an
environment.

It never raises, prints or exits. CACHEHOME_DEBUG=1 lets it explain on stderr what it swallowed.
"""

import os
import sys

MARKER = "cachehome.on"  # see switch.py

ran = False  # a venv runs each .pth twice (python/cpython#75723)


def activate() -> None:
    """Set the variables of the compile caches if CACHEHOME, or `cachehome enable`, says so."""
    global ran
    try:
        if ran:
            return
        ran = True
        wish = os.environ.get("CACHEHOME", "").strip().lower()
        if not wish and not any(
            path.endswith("-packages") and os.path.exists(f"{path}/{MARKER}") for path in sys.path
        ):
            return
        if wish not in ("0", "off"):
            from cachehome import home

            if wish in ("1", "on") or home.wish(os.environ)[0]:
                home.apply(home.resolve(os.environ), os.environ)
    except BaseException:
        # Whatever it is: an exception would be text on stderr at every start of Python, and SystemExit or
        # KeyboardInterrupt the end of the interpreter.
        explain()


def explain() -> None:
    """Write the exception being handled to stderr, if CACHEHOME_DEBUG asks for it."""
    try:
        if os.environ.get("CACHEHOME_DEBUG", "").strip() not in ("", "0"):
            import traceback

            sys.stderr.write(f"cachehome: {traceback.format_exc()}")
    except BaseException:
        pass  # no stderr, or a broken one
