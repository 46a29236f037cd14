"""The start-up self-tests of stores: does create-only hold here, today? Do versions?"""

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


def prove_if_version(store: Store) -> None:
    """Replace an object by a version it no longer has, then by one that is gone; both must fail.

    Raises `StoreError` otherwise: on such a store two machines could both own a workspace.
    """
    key = f"self-test/{os.urandom(8).hex()}"
    first = store.create(key, b"first").version
    try:
        second = store.replace(key, b"second", if_version=first).version
        accepted = _accepts(store, key, b"third", if_version=first)
        found = store.read(key)
        store.delete(key)
        accepted = _accepts(store, key, b"fourth", if_version=second) or accepted
    finally:
        store.delete(key)
    if accepted or found != b"second":
        raise StoreError(
            f"expected {store.uri} to replace {key} only while it has the version asked for; it "
            f"{'accepted' if accepted else 'refused'} another and holds {found!r}.",
            remedy="It cannot decide who owns a workspace. Use a local disk, or an object store "
            "that honours If-Match.",
        )


def _accepts(store: Store, key: str, data: bytes, *, if_version: str) -> bool:
    try:
        store.replace(key, data, if_version=if_version)
    except AlreadyExists:
        return False
    return True
