"""`cachehome keygen`: a pair of keys for a signed store."""

from __future__ import annotations

import argparse
import os

from cachehome.commands import output
from cachehome.errors import StoreError
from cachehome.settings import Settings

DESCRIPTION = """Make a pair of ed25519 keys in a directory: `key` for publishers, `key.pub` for all who restore.

Publishers set signing_key to the first, readers trusted_keys to the second. A file that is there is never replaced."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="made for this user alone if it does not exist")


def run(args: argparse.Namespace, _settings: Settings) -> int:
    from cachehome.store import signing

    try:
        private, public, name = signing.generate(os.path.abspath(args.directory))
    except FileExistsError as error:
        raise StoreError(
            f"{error.filename} exists already: name another directory", path=error.filename
        ) from None
    except OSError as error:
        raise StoreError(f"cannot write {error.filename}: {error.strerror}", path=error.filename) from None
    if args.json:
        output.as_json({"id": name, "signing_key": private, "trusted_keys": [public]})
    else:
        output.lines(f"CACHEHOME_SIGNING_KEY={private}", f"CACHEHOME_TRUSTED_KEYS={public}")
        output.talk(f"cachehome: made key {name}; {private} signs what is run elsewhere: keep it secret")
    return 0
