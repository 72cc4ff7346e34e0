"""Activation from inside a program: what `cachehome.activate()` and `import cachehome.activate` do."""

import os
import sys

from cachehome import _boot, home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_said: set[str] = set()


def activate(app: str | None = None) -> home.Resolution:
    """Set the variables of the compile caches in this process and its children; return what was chosen and
    why.

    To be called before anything compiles; a plain `import torch` beforehand is fine. With *app* the caches go
    below `user_cache_dir()/<app>`, unless the user said otherwise. Never fails: where nothing is usable
    nothing is set, and torch's own defaults apply.
    """
    try:
        answer = home.resolve(os.environ, app=home.plain(app) if app else None)
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
        _boot.observe()
    except Exception as error:
        _boot.explain()
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
