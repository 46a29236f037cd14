"""The start-up self-tests of stores: does create-only hold here, today? Do versions?"""

from __future__ import annotations

import os
from collections.abc import Callable

from intermission.errors import AlreadyExists, StoreError
from intermission.ports.store import Store


def prove_create_only(store: Store) -> None:
    """Create an object twice; the second must be refused and the first must stand.

    Raises `StoreError` otherwise: on such a store two workers could both finish a task.
    """
    key = f"self-test/{os.urandom(8).hex()}"
    store.create(key, b"first")
    try:
        refused = _refuses(lambda: store.create(key, b"second"))
        found = store.read(key)
    finally:
        store.delete(key)
    if not refused or found != b"first":
        raise StoreError(
            f"expected {store.uri} to refuse a second create of {key}, and the first bytes to "
            f"stand; it {'refused' if refused else 'accepted'} it and holds {found!r}.",
            remedy="It cannot decide who finishes a task. Use a local disk, or an object store "
            "that honours If-None-Match.",
        )


def prove_if_version(store: Store) -> None:
    """Replace an object by a version it no longer has, then by one that is gone; both must fail.

    Raises `StoreError` otherwise: on such a store two machines could both own a workspace.
    """
    key = f"self-test/{os.urandom(8).hex()}"
    first = store.create(key, b"first").version
    try:
        second = store.replace(key, b"second", if_version=first).version
        refused = _refuses(lambda: store.replace(key, b"third", if_version=first))
        found = store.read(key)
        store.delete(key)
        refused &= _refuses(lambda: store.replace(key, b"fourth", if_version=second))
    finally:
        store.delete(key)
    if not refused or found != b"second":
        raise StoreError(
            f"expected {store.uri} to replace {key} only while it has the version asked for; it "
            f"{'refused' if refused else 'accepted'} another and holds {found!r}.",
            remedy="It cannot decide who owns a workspace. Use a local disk, or an object store "
            "that honours If-Match.",
        )


def _refuses(act: Callable[[], object]) -> bool:
    try:
        act()
    except AlreadyExists:
        return True
    return False
