"""The store with one step of its protocol removed. `python broken.py STEP ARGUMENTS` is `cachehome doctor` for it.

A step that neither a drill nor the load catches would not be needed, or the test of it would not be one.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from cachehome.errors import IntegrityError, NotInStore, Untrusted
from cachehome.store import gc, reader, store
from cachehome.store.manifest import Manifest
from cachehome.store.posix import PosixBackend
from cachehome.store.store import Store


def no_list_again(patch: Any) -> None:
    patch(Store, "_stands", lambda *_: True)


def no_look_at_the_base(patch: Any) -> None:
    def stands(self: Store, build: str, profile: str, number: int, highest: int) -> bool:
        return max(self.numbers(build, profile), default=number) <= number

    patch(Store, "_stands", stands)


def no_nonce(patch: Any) -> None:
    patch(Store, "_is_mine", lambda *_: False)


def no_rebase(patch: Any) -> None:
    """A rival's generation is taken for the one that was to be made."""
    original = Store._create

    def create(*args: Any) -> Any:
        generation, _ = original(*args)
        return generation, True

    patch(Store, "_create", create)


def no_deadline(patch: Any) -> None:
    original = Store.advance

    def advance(*args: Any, **options: Any) -> Any:
        return original(*args, **(options | {"deadline": float("inf")}))

    patch(Store, "advance", advance)


def no_look_at_the_packs(patch: Any) -> None:
    patch(Store, "_absent", lambda *_: frozenset())


def marks_stay_on_what_is_named(patch: Any) -> None:
    patch(Store, "_revive", lambda *_: None)


def condemned_packs_are_named(patch: Any) -> None:
    patch(store, "renamed", lambda *pack: pack)


def no_patience_with_listings(patch: Any) -> None:
    patch(reader, "_LAG_TRIES", 1)


def no_probing_beyond_the_listing(patch: Any) -> None:
    patch(Store, "_numbers", lambda self, build, profile, _: self.numbers(build, profile))


def no_second_read(patch: Any) -> None:
    patch(Store, "_read_twice", Store.read)


def rename_instead_of_link(patch: Any) -> None:
    def put_new(self: PosixBackend, name: str, path: str, data: bytes) -> bool:
        self._put(name, path, data)
        return True

    patch(PosixBackend, "_put_new", put_new)


def look_then_rename(patch: Any) -> None:
    def put_new(self: PosixBackend, name: str, path: str, data: bytes) -> bool:
        if os.path.exists(path):
            return False
        self._put(name, path, data)
        return True

    patch(PosixBackend, "_put_new", put_new)


def count_only_retention(patch: Any) -> None:
    """The newest are kept, and nothing else: no grace for the young."""
    original = gc.plan

    def plan(store: Store, build: str, rules: gc.Rules) -> gc.Plan:
        return original(store, build, gc.Rules(1, 0.0, rules.keep_idle_seconds, rules.writer_seconds))

    patch(gc, "plan", plan)


def descending_deletion(patch: Any) -> None:
    original = gc.apply

    def apply(store: Store, plan: gc.Plan) -> gc.Plan:
        return original(store, plan._replace(generations=plan.generations[::-1]))

    patch(gc, "apply", apply)


def no_grace_for_packs(patch: Any) -> None:
    """Packs that nothing names are deleted at once, without a mark."""
    original = gc.plan

    def plan(store: Store, build: str, rules: gc.Rules) -> gc.Plan:
        found = original(store, build, rules)
        return found._replace(packs=found.packs + found.condemn, condemn=())

    def delete(store: Store, plan: gc.Plan) -> tuple[gc.Item, ...]:
        for item in plan.packs:
            store.backend.delete(item.name)
        return plan.packs

    patch(gc, "plan", plan)
    patch(gc, "_delete_packs", delete)


def no_look_before_packs_go(patch: Any) -> None:
    """What was planned is deleted, whatever has been published since."""

    def delete(store: Store, plan: gc.Plan) -> tuple[gc.Item, ...]:
        for item in plan.packs:
            store.backend.delete(item.name)
        return plan.packs

    patch(gc, "_delete_packs", delete)


def marks_keep_their_age(patch: Any) -> None:
    def condemn(store: Store, plan: gc.Plan, _: set[str]) -> tuple[gc.Item, ...]:
        for item in plan.condemn:
            store.backend.put_new(f"{plan.build}/condemned/{gc._sha256(item)}", b"")
        return plan.condemn

    patch(gc, "_condemn", condemn)
    original = gc.apply
    patch(gc, "apply", lambda store, plan: original(store, _without_named(plan)))


def _without_named(plan: gc.Plan) -> gc.Plan:
    return plan._replace(named=())


def manifest_before_packs(patch: Any) -> None:
    """Publishers name what they have yet to store."""
    original = Store.commit

    def commit(self: Store, build: str, profile: str, addition: Any, **options: Any) -> Any:
        for pack in addition.packs:
            self.backend.delete(f"{build}/{pack.name}")
        return original(self, build, profile, addition, **options)

    patch(Store, "commit", commit)


def no_manifest_check(patch: Any) -> None:
    """A generation that can't be read is taken for one that was pruned, and what it held is forgotten."""

    def head(self: Store, build: str, profile: str, *_: Any, **__: Any) -> store.Head:
        numbers = self.numbers(build, profile)
        for number in reversed(numbers):
            try:
                return store.Head(number, self.read(build, profile, number))
            except (NotInStore, IntegrityError, Untrusted):
                continue
        return store.Head(max(numbers, default=0), None)

    patch(Store, "head", head)


def forgets_the_base(patch: Any) -> None:
    """A publisher writes what it brings, not what the line holds."""
    original = store.merge

    def merge(start: Manifest | None, *args: Any, **options: Any) -> Manifest:
        return original(None, *args, **options)

    patch(store, "merge", merge)


STEPS = {
    step.__name__: step
    for step in (
        no_list_again,
        no_look_at_the_base,
        no_nonce,
        no_rebase,
        no_deadline,
        no_look_at_the_packs,
        marks_stay_on_what_is_named,
        condemned_packs_are_named,
        no_patience_with_listings,
        no_probing_beyond_the_listing,
        no_second_read,
        rename_instead_of_link,
        look_then_rename,
        count_only_retention,
        descending_deletion,
        no_grace_for_packs,
        no_look_before_packs_go,
        marks_keep_their_age,
        manifest_before_packs,
        no_manifest_check,
        forgets_the_base,
    )
}


def main(step: str, *words: str) -> int:
    from cachehome import cli

    if step != "none":
        STEPS[step](setattr)
    return cli.main(["doctor", *words])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
