"""The public names of the package, and where each of them comes from."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Name -> (module, name in it); without a name it is the module itself, which is callable.
NAMES = {
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


def load(name: str) -> "Any":
    """The object that *name* means."""
    module, attribute = NAMES[name]
    __import__(module)
    loaded = sys.modules[module]
    return getattr(loaded, attribute) if attribute else loaded
