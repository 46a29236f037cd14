"""The boxes of MP4 files: what is missing, what is locked, and boxes that lie."""

from __future__ import annotations

import random
import struct

import pytest

from intermission.media.isobmff import Structure, examine


def box(kind: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I4s", 8 + len(content), kind) + content


def moov(entry: bytes) -> bytes:
    stsd = box(b"stsd", bytes(8) + box(entry, bytes(70)))
    return box(b"moov", box(b"trak", box(b"mdia", box(b"minf", box(b"stbl", stsd)))))


def examined(data: bytes) -> Structure:
    return examine(lambda offset, length: data[offset : offset + length], len(data))


def test_a_whole_file() -> None:
    data = box(b"ftyp", b"isom") + moov(b"avc1") + box(b"mdat", bytes(100))
    assert examined(data) == Structure(has_index=True)


def test_a_box_with_a_long_length() -> None:
    long = struct.pack(">I4sQ", 1, b"mdat", 16 + 50) + bytes(50)
    assert examined(long + moov(b"avc1")) == Structure(has_index=True)


def test_a_last_box_to_the_end_of_the_file() -> None:
    data = moov(b"avc1") + struct.pack(">I4s", 0, b"mdat") + bytes(50)
    assert examined(data) == Structure(has_index=True)


@pytest.mark.parametrize("entry", [b"encv", b"enca", b"drms"])
def test_a_protected_track(entry: bytes) -> None:
    assert examined(moov(entry)).is_protected


def test_protection_is_found_behind_an_open_track() -> None:
    both = box(b"moov", moov(b"avc1")[8:] + moov(b"enca")[8:])
    assert examined(both).is_protected


def test_a_missing_index_and_a_missing_end() -> None:
    data = box(b"ftyp", b"isom") + box(b"mdat", bytes(100))
    assert examined(data[:-30]) == Structure(has_index=False, missing_bytes=30)


def test_fragments() -> None:
    assert examined(box(b"moof") + box(b"mdat")).has_fragments


def test_boxes_that_lie_end_the_walk() -> None:
    rng = random.Random(7)
    whole = box(b"ftyp", b"isom") + moov(b"avc1") + box(b"mdat", bytes(100))
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        assert examined(bytes(data[: rng.randrange(len(data))])).missing_bytes >= 0
