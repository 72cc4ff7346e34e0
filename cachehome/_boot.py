"""Activation: the start-up hook, and the same for an engine that asks for it.

`cachehome.pth` and `cachehome.start` call `activate()` in every Python process of an environment. It never
raises, prints or exits, and while it is off it imports nothing of ours but the switch. CACHEHOME_DEBUG=1 lets
it explain on stderr what it swallowed. `cachehome.activate(app=...)` is `activate_now()`.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cachehome.home import Resolution

ran = False  # a venv runs each .pth twice (python/cpython#75723)
_said: set[str] = set()


def activate() -> None:
    """The hook: set the variables of the compile caches if CACHEHOME, or `cachehome enable`, says so."""
    global ran
    try:
        if ran:
            return
        ran = True
        value = os.environ.get("CACHEHOME", "").strip()
        if not value:
            from cachehome import switch

            value = switch.read()
        if value.lower() in ("", "0", "off"):
            return
        from cachehome import home

        if home.wish(os.environ)[0]:
            home.apply(home.resolve(os.environ), os.environ)
    except BaseException:
        # Whatever it is: an exception would be text on stderr at every start of Python, and SystemExit or
        # KeyboardInterrupt the end of the interpreter.
        _explain()


def activate_now(app: str | None = None) -> "Resolution":
    """Set the variables of the compile caches in this process and its children; return what was chosen and
    why.

    To be called before anything compiles; a plain `import torch` beforehand is fine. With *app* the caches go
    below `user_cache_dir()/<app>`, unless the user said otherwise. Never fails: where nothing is usable
    nothing is set, and torch's own defaults apply.
    """
    from cachehome import home

    try:
        answer = home.resolve(os.environ, app=(home.plain(app) or None) if app else None)
        late = too_late()
        if late and any(os.environ.get(name) != value for name, value in answer.values.items()):
            answer.notes.append(late)
            _say("warning", f"too late: {late}; activate before the first compile")
            return answer
        home.apply(answer, os.environ)
        for name, value in answer.values.items():
            _say("info", f"{name}={value}")
        if answer.root is None:
            _say("info", answer.reason)
    except Exception as error:
        _explain()
        answer = home.Resolution("")
        answer.reason = f"activation failed ({error!r}), so torch's own defaults apply"
    return answer


def too_late() -> str:
    """What this process has compiled already; empty if it is in time. To have loaded torch._dynamo is no
    harm.
    """
    counters: dict[str, Any] = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None) or {}
    if any(counters.values()):
        return "this process has already compiled, so its caches stay where they are"
    return ""


def _say(level: str, text: str) -> None:
    """Once a process, through logging if anybody has loaded it: nobody else has configured it."""
    if text in _said:
        return
    _said.add(text)
    logging = sys.modules.get("logging")
    if logging is not None:
        getattr(logging.getLogger("cachehome"), level)("%s", text)
    elif level == "warning":
        sys.stderr.write(f"cachehome: {text}\n")


def _explain() -> None:
    """Write the exception being handled to stderr, if CACHEHOME_DEBUG asks for it."""
    try:
        if os.environ.get("CACHEHOME_DEBUG", "").strip() not in ("", "0"):
            import traceback

            sys.stderr.write(f"cachehome: {traceback.format_exc()}")
    except BaseException:
        pass  # no stderr, or a broken one
