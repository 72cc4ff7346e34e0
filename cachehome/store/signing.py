"""Signatures by ed25519, and the files that keys live in. Needs `cachehome[sign]`.

    key        private: PEM (PKCS 8), mode 0600                    signing_key
    key.pub    public: PEM, one or several in a file               trusted_keys: several files

    signature  ed25519:<id of the key>:<base64>                    the id says whose it is; it proves nothing
    a mark     {"format":"cachehome-mark","version":1,"name":...,"sha256":...,"signature":...}\\n<payload>

What is signed is a header line without its signature. It holds the sha256 of what follows. A manifest's payload
holds its build, profile, line and number, a mark's header its name in the store: neither passes for another.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from cachehome.errors import ConfigError, IntegrityError, Untrusted, missing_extra
from cachehome.store.document import read, write

if TYPE_CHECKING:
    from cachehome.settings import Settings

Sign = Callable[[bytes], str]
Verify = Callable[[bytes, "str | None"], None]

MARK = "cachehome-mark"
VERSION = 1
_MAX_HEADER = 64 << 10
_MAX_KEY_FILE = 1 << 20
_PEM_END = b"-----END PUBLIC KEY-----"


class Keys:
    """The key that signs, if any, and the keys that are trusted; the one that signs always is."""

    def __init__(self, private: Any = None, trusted: Iterable[Any] = ()) -> None:
        """*private*, *trusted*: keys as `cryptography` has them; see `load`."""
        self._private = private
        public = [*trusted, *([private.public_key()] if private else [])]
        self._trusted = {key_id(key): key for key in public}
        self._id = key_id(private.public_key()) if private else ""

    @classmethod
    def load(cls, settings: Settings) -> Keys | None:
        """The keys that *settings* name; None if they name none. Raises `ConfigError`, `MissingExtra`."""
        if not settings.signing_key and not settings.trusted_keys:
            return None
        private = _private(settings.signing_key, settings) if settings.signing_key else None
        return cls(private, [key for path in settings.trusted_keys for key in _public(path, settings)])

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the trusted keys."""
        return tuple(sorted(self._trusted))

    @property
    def sign(self) -> Sign | None:
        """The function that signs; None for a reader."""
        return self._sign if self._private else None

    def _sign(self, data: bytes) -> str:
        import base64

        return f"ed25519:{self._id}:{base64.b64encode(self._private.sign(data)).decode()}"

    def verify(self, data: bytes, signature: str | None) -> None:
        """Raise `Untrusted` unless *signature* was made of *data* by a trusted key."""
        import base64

        from cryptography.exceptions import InvalidSignature

        if not signature:
            raise Untrusted("it is not signed, and trusted_keys asks for that", reason="unsigned")
        kind, _, rest = signature.partition(":") if isinstance(signature, str) else ("", "", "")
        name, _, text = rest.partition(":")
        key = self._trusted.get(name)
        if kind != "ed25519" or key is None:
            raise Untrusted(
                f"it is signed by the key {name[:16]!r}, which is not one of trusted_keys",
                reason="unknown_key",
            )
        with contextlib.suppress(InvalidSignature, ValueError):
            key.verify(base64.b64decode(text, validate=True), data)
            return
        raise Untrusted(f"its signature by the key {name} is wrong", reason="wrong_signature")


def key_id(public: Any) -> str:
    """16 hex digits that name a public key."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return hashlib.sha256(public.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:16]


def seal(name: str, data: bytes, sign: Sign | None = None) -> bytes:
    """A mark: *data* under a header that binds it to *name* (`<build>/denied/<label>`); *sign*: None for unsigned."""
    header: dict[str, Any] = {
        "format": MARK,
        "version": VERSION,
        "name": name,
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    if sign is not None:
        header["signature"] = sign(write(header))
    return write(header) + b"\n" + data


def unseal(name: str, sealed: bytes, verify: Verify | None = None) -> bytes:
    """What was sealed under *name*. Raises `IntegrityError`, and `Untrusted` if *verify* does."""
    line, newline, data = sealed[: _MAX_HEADER + 1].partition(b"\n")
    try:
        header = read(line)
        if not newline or header["format"] != MARK or header["version"] != VERSION:
            raise ValueError("not a mark that this cachehome reads")
        signature = header.pop("signature", None)
        signed = write(header)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(f"{name} is damaged: {error}", name=name, reason="mark_damaged") from None
    if verify is not None:
        verify(signed, signature)
    data = sealed[len(line) + 1 :]
    if header.get("name") != name:
        raise IntegrityError(
            f"{name} belongs elsewhere: {header.get('name')!r}", name=name, reason="mark_misplaced"
        )
    if hashlib.sha256(data).hexdigest() != header.get("sha256"):
        raise IntegrityError(f"{name} is damaged: sha256 differs", name=name, reason="mark_damaged")
    return data


def generate(directory: str, name: str = "key") -> tuple[str, str, str]:
    """Make a pair of keys in *directory*, which is made if need be; (private file, public file, id).

    Never replaces a file: raises FileExistsError.
    """
    ed25519, serialization = _libraries()
    private = ed25519.Ed25519PrivateKey.generate()
    os.makedirs(directory, mode=0o700, exist_ok=True)
    path = os.path.join(directory, name)
    secret = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for file, text, mode in ((path, secret, 0o600), (f"{path}.pub", public, 0o644)):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as opened:
            opened.write(text)
    return path, f"{path}.pub", key_id(private.public_key())


def _private(path: str, settings: Settings) -> Any:
    ed25519, serialization = _libraries()
    data, status = _key_file(path, "signing_key", settings)
    # A secret that Kubernetes mounts for a group belongs to root: its reader can't own it.
    mounted = status.st_uid == 0 and os.geteuid() != 0 and not status.st_mode & 0o020
    if status.st_mode & (0o007 if mounted else 0o077):
        raise _wrong(
            "signing_key", settings, path, f"{path} can be read or written by others: chmod 600 {path}"
        )
    try:
        key = serialization.load_pem_private_key(data, None)
    except (ValueError, TypeError) as error:
        raise _wrong("signing_key", settings, path, f"{path} holds no usable private key: {error}") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise _wrong("signing_key", settings, path, f"{path} holds a key of another kind than ed25519")
    return key


def _public(path: str, settings: Settings) -> list[Any]:
    ed25519, serialization = _libraries()
    data, status = _key_file(path, "trusted_keys", settings)
    if status.st_mode & 0o002:
        raise _wrong("trusted_keys", settings, path, f"{path} can be written by everybody: chmod o-w {path}")
    keys = []
    for part in data.split(_PEM_END)[:-1]:
        try:
            keys.append(serialization.load_pem_public_key(part[part.rfind(b"-----BEGIN") :] + _PEM_END))
        except ValueError as error:
            raise _wrong("trusted_keys", settings, path, f"{path} holds a damaged key: {error}") from None
    if not keys or not all(isinstance(key, ed25519.Ed25519PublicKey) for key in keys):
        hint = " (that is the private key: name the .pub file)" if b"PRIVATE KEY" in data else ""
        raise _wrong("trusted_keys", settings, path, f"{path} holds no ed25519 public key{hint}")
    return keys


def _key_file(path: str, key: str, settings: Settings) -> tuple[bytes, os.stat_result]:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _wrong(key, settings, path, f"{path} is not a regular file")
            return file.read(_MAX_KEY_FILE), status
    except ConfigError:
        raise
    except OSError as error:
        raise _wrong(key, settings, path, f"cannot read {path}: {error.strerror}") from None


def _wrong(key: str, settings: Settings, path: str, message: str) -> ConfigError:
    source = settings.origin.get(key, "default")
    return ConfigError(
        f"{key} (from {source}): {message}",
        key=key,
        source=source,
        value=path,
        allowed="a file made by `cachehome keygen`",
    )


def _libraries() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise missing_extra("cryptography", "sign") from None
    return ed25519, serialization
