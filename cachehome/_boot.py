"""The start-up hook: what `cachehome.pth` and `cachehome.start` call in every Python process of an
environment.

It never raises, prints or exits. CACHEHOME_DEBUG=1 lets it explain on stderr what it swallowed.
"""

import os
import sys

MARKER = "cachehome.on"  # see switch.py

OFF = ("", "0", "off", "false", "no")

ran = False  # a venv runs each .pth twice (python/cpython#75723)


def activate() -> None:
    """Set the variables of the compile caches if CACHEHOME, or `cachehome enable`, says so."""
    global ran
    try:
        if ran:
            return
        ran = True
        apply()
        observe()
    except BaseException:
        # Whatever it is: an exception would be text on stderr at every start of Python, and SystemExit or
        # KeyboardInterrupt the end of the interpreter.
        explain()


def apply() -> None:
    """Set the variables."""
    wish, asked_by = os.environ.get("CACHEHOME", "").strip(), "CACHEHOME"
    if not wish:
        for path in sys.path:
            if path.endswith("-packages") and os.path.exists(f"{path}/{MARKER}"):
                from cachehome import switch

                wish, asked_by = switch.read(), "cachehome enable"
                break
    if wish.lower() in ("1", "on"):
        wish = "on"
    elif os.path.isabs(wish):
        wish = os.path.normpath(wish)
    else:
        return  # off, or not a wish: `cachehome status` says so
    from cachehome import place

    values = place.ordinary(os.environ, wish, asked_by)
    if values is None:
        from cachehome import home

        home.apply(home.resolve(os.environ), os.environ)
    else:
        os.environ.update(values)


def observe() -> None:
    """Watch torch and Triton, if diagnostics are on, or a directory of ours is in effect that was restored."""
    count = os.environ.get("CACHEHOME_DIAGNOSTICS", "").strip().lower() not in OFF
    if count or "CACHEHOME_APPLIED" in os.environ:
        live = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
        if count or os.path.exists(f"{live}/.cachehome/stamp"):
            if os.environ.get("CACHEHOME", "").strip().lower() in ("0", "off"):
                return
            from cachehome.observe import watch

            watch.start(count)


def explain() -> None:
    """Write the exception being handled to stderr, if CACHEHOME_DEBUG asks for it."""
    try:
        if os.environ.get("CACHEHOME_DEBUG", "").strip() not in ("", "0"):
            import traceback

            sys.stderr.write(f"cachehome: {traceback.format_exc()}")
    except BaseException:
        pass  # no stderr, or a broken one
