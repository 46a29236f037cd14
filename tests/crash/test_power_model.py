"""The disk model itself: it keeps what was synced, and can lose everything that was not."""

from __future__ import annotations

import random

from intermission.testing.power import (
    Create,
    Disk,
    Folder,
    Image,
    Link,
    Operation,
    Remove,
    Rename,
    Sync,
    Truncate,
    Write,
)

TRIES = 400


def images(*operations: Operation) -> list[Image]:
    """Many states a disk may be in after these operations on /d."""
    disk = Disk("/d")
    for operation in operations:
        disk.apply(operation)
    rng = random.Random(1)
    return [disk.image(rng, rng.choice((0.0, 0.3, 0.5, 0.9, 1.0))) for _ in range(TRIES)]


def synced(*operations: Operation) -> tuple[Operation, ...]:
    """These, and a sync of everything they made."""
    made = [one.path for one in operations if isinstance(one, Create | Folder)]
    syncs = [Sync(path, 1000) for path in (*made, "/d")]
    return (*operations, *syncs)


def contents(path: str, found: list[Image]) -> set[bytes | None]:
    return {image[path] for image in found if path in image}


def test_what_was_never_synced_may_be_lost_or_not() -> None:
    found = images(Create("/d/a"), Write("/d/a", 0, b"hello"))
    assert {"/d/a" in image for image in found} == {True, False}
    assert {b"hello", b"", b"\0\0\0\0\0"} <= contents("/d/a", found)


def test_a_synced_file_without_its_name_is_lost() -> None:
    found = images(Create("/d/a"), Write("/d/a", 0, b"hello"), Sync("/d/a", 2))
    assert {"/d/a" in image for image in found} == {True, False}
    assert contents("/d/a", found) == {b"hello"}


def test_a_synced_name_without_its_bytes_is_empty() -> None:
    found = images(Create("/d/a"), Write("/d/a", 0, b"hello"), Sync("/d", 2))
    assert all("/d/a" in image for image in found)
    assert b"" in contents("/d/a", found)


def test_both_synced_is_there() -> None:
    found = images(*synced(Create("/d/a"), Write("/d/a", 0, b"hello")))
    assert {image["/d/a"] for image in found} == {b"hello"}


def test_a_sync_covers_only_what_was_complete_when_it_began() -> None:
    found = images(Create("/d/a"), Sync("/d", 1), Write("/d/a", 0, b"late"), Sync("/d/a", 2))
    assert b"" in contents("/d/a", found)


def test_writes_are_torn_and_reordered() -> None:
    made = synced(Create("/d/a"), Write("/d/a", 0, b"0" * 2048))
    found = images(*made, Write("/d/a", 0, b"1" * 1024), Write("/d/a", 1024, b"2" * 1024))
    seen = contents("/d/a", found)
    assert b"0" * 1024 + b"2" * 1024 in seen, "the second alone"
    assert b"0" * 512 + b"1" * 512 + b"0" * 1024 in seen, "half of the first"
    assert all(len(one or b"") == 2048 for one in seen)


def test_an_unsynced_truncation_may_not_have_happened() -> None:
    found = images(*synced(Create("/d/a"), Write("/d/a", 0, b"hello")), Truncate("/d/a", 2))
    assert contents("/d/a", found) == {b"hello", b"he"}


def test_a_rename_happens_whole_or_not_at_all() -> None:
    made = synced(Create("/d/a"), Write("/d/a", 0, b"new"), Create("/d/b"))
    found = images(*made, Rename("/d/a", "/d/b"))
    assert {tuple(sorted(image.items())) for image in found} == {
        (("/d/a", b"new"), ("/d/b", b"")),
        (("/d/b", b"new"),),
    }


def test_a_link_survives_its_temporary_name() -> None:
    made = synced(Folder("/d/t"), Create("/d/t/x"), Write("/d/t/x", 0, b"data"))
    found = images(*made, Link("/d/t/x", "/d/a"), Sync("/d", 1000), Remove("/d/t/x"))
    assert all(image["/d/a"] == b"data" for image in found)
    assert {"/d/t/x" in image for image in found} == {True, False}


def test_nothing_is_below_a_folder_that_was_lost() -> None:
    found = images(
        Folder("/d/f"),
        Create("/d/f/a"),
        Write("/d/f/a", 0, b"x"),
        Sync("/d/f/a", 3),
        Sync("/d/f", 3),
    )
    assert {"/d/f/a" in image for image in found} == {True, False}
    assert all(("/d/f" in image) == ("/d/f/a" in image) for image in found)


def test_the_second_change_of_a_name_brings_the_first() -> None:
    found = images(Create("/d/a"), Remove("/d/a"), Create("/d/a"), Sync("/d", 3))
    assert all("/d/a" in image for image in found)
