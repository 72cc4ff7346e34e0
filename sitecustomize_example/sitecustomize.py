"""Activate cachehome where no .pth reaches, and hand on to the sitecustomize.py that was there before.

Python imports one sitecustomize only, the first on sys.path. Put this one's directory first, in PYTHONPATH, and it runs
the next one itself, such as the one that Debian keeps beside its standard library, or a tracer's.
"""

import sys


def _activate() -> None:
    try:
        from cachehome._boot import activate
    except ImportError:
        return  # an interpreter that has no cachehome: nothing to say
    activate()


def _hand_on() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    for place, entry in enumerate(sys.path):
        found = PathFinder.find_spec("sitecustomize", [entry])
        if found is not None and found.origin == __file__:
            # Only what comes later: two copies of this file must not call each other for ever.
            following = PathFinder.find_spec("sitecustomize", sys.path[place + 1 :])
            if following is not None and following.loader is not None:
                module = module_from_spec(following)
                sys.modules["sitecustomize"] = module
                following.loader.exec_module(module)
            return


_activate()
_hand_on()
