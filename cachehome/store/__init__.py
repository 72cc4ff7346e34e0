"""The store: verified, immutable generations in a shared directory or bucket. Knows nothing of torch or of families.

Needs `cachehome[sync]`. `Store` in store.py is the way in.
"""

from __future__ import annotations

from cachehome.store.store import Generation, Store

__all__ = ["Generation", "Store"]
