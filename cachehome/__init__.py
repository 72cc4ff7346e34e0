"""cachehome: one home for every compile cache of torch.compile and Triton, and warm starts anywhere.

>>> import cachehome
>>> cachehome.activate(app="engine").directories["inductor"]  # doctest: +SKIP
'/home/u/.cache/engine/cp311-x86_64-1a2b3c4d/torch-2.13.0+cpu/local/torchinductor'

Importing the package imports nothing: the start-up hook does it in every Python process. That is also why the
modules that the hook needs do without `from __future__ import annotations`, which is an import like any
other. The public names below are loaded when they are first used.
"""

__version__ = "0.1.0"

__all__ = [
    "CacheHomeError",
    "Session",
    "Settings",
    "Store",
    "__version__",
    "activate",
    "identity",
    "path",
    "publish",
    "restore",
    "user_cache_dir",
]

# Public name -> (module, name in it). An empty name is the module, which is callable.
_LAZY = {
    "_boot": ("cachehome._boot", ""),  # the .pth says `cachehome._boot.activate()`
    "CacheHomeError": ("cachehome.errors", "CacheHomeError"),
    "Session": ("cachehome.lifecycle.session", "Session"),
    "Settings": ("cachehome.settings", "Settings"),
    "Store": ("cachehome.store.store", "Store"),
    # Not the module cachehome.activate, whose import activates before anybody has named an app.
    "activate": ("cachehome.early", "activate"),
    "identity": ("cachehome.identity", ""),
    "path": ("cachehome.home", "path"),
    "publish": ("cachehome.sync.guard", "publish"),
    "restore": ("cachehome.sync.guard", "restore"),
    "user_cache_dir": ("cachehome.home", "user_cache_dir"),
}

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cachehome import identity
    from cachehome.early import activate
    from cachehome.errors import CacheHomeError
    from cachehome.home import path, user_cache_dir
    from cachehome.lifecycle.session import Session
    from cachehome.settings import Settings
    from cachehome.store.store import Store
    from cachehome.sync.guard import publish, restore


def __getattr__(name: str) -> "Any":
    try:
        module, attribute = _LAZY[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    loaded = __import__(module, fromlist=[attribute or "*"])
    return getattr(loaded, attribute) if attribute else loaded


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
