"""The tree of errors. A handler needs to know what to do, so the branches say what can be done.

    CacheHomeError
    ├── ConfigError (ValueError)          a setting is wrong: mend the key that it names
    ├── MissingExtra (ImportError)        an optional package is absent: install the extra that it names
    ├── NotWarm                           `require_warm` asked for a warm start and this was none
    └── StoreError (OSError)              the store did not do what was asked
        ├── StoreUnavailable              it is not there, not readable, full, or does not answer
        ├── UnsupportedStore              it can't create a file exclusively: publishing is refused
        ├── CommitConflict                other writers won every try: the next publish finds less to add
        ├── NotInStore (FileNotFoundError)  a name that was asked for is not there
        ├── Untrusted (PermissionError)   somebody who is not trusted could have written it
        └── IntegrityError                bytes are not what the manifest says: nothing of it was installed

Every error carries its facts as attributes (`error.key`, `error.path`, ...), survives pickling, and its message
is one line that ends with the next step where there is one.
"""

from __future__ import annotations

from typing import Any


class CacheHomeError(Exception):
    """Base of all errors that cachehome raises on purpose."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields = fields

    def __getattr__(self, name: str) -> Any:
        fields: dict[str, Any] = self.__dict__.get("fields", {})
        try:
            return fields[name]
        except KeyError:
            raise AttributeError(name) from None

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.fields))


def _rebuild(cls: type[CacheHomeError], message: str, fields: dict[str, Any]) -> CacheHomeError:
    return cls(message, **fields)


class ConfigError(CacheHomeError, ValueError):
    """A setting has an unknown key or a value that is not allowed. Fields: key, source, value, allowed."""


class MissingExtra(CacheHomeError, ImportError):
    """An optional package is not installed. Fields: package, extra."""


class NotWarm(CacheHomeError):
    """`require_warm` names a family that did not start warm. Fields: families."""


class StoreError(CacheHomeError, OSError):
    """The store did not do what was asked. Fields: path or name, and errno where there is one."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.errno = fields.get("errno")  # OSError has it already, and would hide the field


class StoreUnavailable(StoreError):
    """The store is missing, unreadable, read-only, full, or does not answer."""


class UnsupportedStore(StoreError):
    """The store has no create-if-absent, so a commit could not be exclusive."""


class CommitConflict(StoreError):
    """The deadline passed while other writers kept winning. Fields: number, tries."""


class NotInStore(StoreError, FileNotFoundError):
    """A name is not in the store. Fields: name."""


class Untrusted(StoreError, PermissionError):
    """Owner, mode or signature is not one that is trusted. Fields: path, owner, mode."""


class IntegrityError(StoreError):
    """Bytes are not what the manifest says. Fields: name, reason."""


def missing_extra(package: str, extra: str) -> MissingExtra:
    """The error for an optional *package* that can't be imported; its message names the *extra*."""
    return MissingExtra(
        f"{package} is not installed: pip install 'cachehome[{extra}]'", package=package, extra=extra
    )


def unread(error: OSError | ValueError) -> str:
    """What kept a JSON document from being read, in words: a decoder's own tell nobody anything."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error) if type(error) is ValueError else "it is no JSON"
