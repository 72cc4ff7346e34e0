"""The start-up hook, as `cachehome.start` names it (PEP 829, from Python 3.15 on), and what it rarely needs.

CACHEHOME_DEBUG=1 lets it explain on stderr what it swallowed.
"""

import os
import sys

OFF = ("", "0", "off", "false", "no")


def activate() -> None:
    """The hook. It is the package's; `cachehome enable`, a line of .pth for older Pythons, counts here too."""
    import cachehome
    from cachehome import switch

    if not os.environ.get("CACHEHOME", "").strip():
        value = switch.read()
        if value:
            os.environ["CACHEHOME"] = value
    cachehome._hook()  # noqa: SLF001 - the other half of this module


def observe() -> None:
    """Watch torch and Triton, if diagnostics are on, or a directory of ours is in effect that was restored."""
    import cachehome

    count = os.environ.get("CACHEHOME_DIAGNOSTICS", "").strip().lower() not in OFF
    if count or "CACHEHOME_APPLIED" in os.environ:
        live = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
        if count or os.path.exists(cachehome.stamp_of(live)):
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
