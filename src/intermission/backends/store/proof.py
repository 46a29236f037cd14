"""The start-up self-test of every store: does create-only hold here, today?"""

from __future__ import annotations

import os

from intermission.errors import AlreadyExists, StoreError
from intermission.ports.store import Store


def prove_create_only(store: Store) -> None:
    """Create an object twice; the second must be refused and the first must stand.

    Raises `StoreError` otherwise: on such a store two workers could both finish a task.
    """
    key = f"self-test/{os.urandom(8).hex()}"
    store.create(key, b"first")
    try:
        try:
            store.create(key, b"second")
        except AlreadyExists:
            refused = True
        else:
            refused = False
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
