"""cachehome: one home for every compile cache of torch.compile and Triton, and warm starts anywhere.

>>> import cachehome
>>> cachehome.activate(app="engine").directories["inductor"]  # doctest: +SKIP
'/home/u/.cache/engine/cp311-x86_64-1a2b3c4d/torch-2.13.0+cpu/local/torchinductor'

Importing the package imports nothing: the public names are loaded when they are first used (_public.py), since the
start-up hook imports the package in every process in which it is on. For the same reason the modules that the hook
needs do without `from __future__ import annotations`, which is an import like any other.
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
    if name in __all__:
        from cachehome import _public

        return _public.load(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
