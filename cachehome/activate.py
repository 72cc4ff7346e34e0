"""Early activation for engines: `import cachehome.activate`, before anything compiles.

Importing this module activates. Because the package's attribute `activate` is this module from then on, it is
callable like the function: `cachehome.activate(app="engine")`.
"""

import sys

from cachehome.early import activate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cachehome.home import Resolution


class _CallableModule(type(sys)):  # type: ignore[misc]
    def __call__(self, app: str | None = None) -> "Resolution":
        return activate(app)


sys.modules[__name__].__class__ = _CallableModule
activate()
