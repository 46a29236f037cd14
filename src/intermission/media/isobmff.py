"""The box structure of MP4 and QuickTime files: what libav does not tell.

libav opens an encrypted file and decodes noise, and says only "invalid data" of a file whose
index was never written. Reading the boxes ourselves costs a few hundred bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

ReadAt = Callable[[int, int], bytes]
"""`read_at(offset, length)`: fewer bytes than asked for at the end of the file."""

_CONTAINERS = frozenset({b"moov", b"trak", b"mdia", b"minf", b"stbl"})
_PROTECTED = frozenset({b"encv", b"enca", b"enct", b"encs", b"drms", b"drmi", b"aavd"})
_BOXES_MAX = 1_000_000
_ENTRIES_MAX = 64
_STSD_HEADER_BYTES = 8


@dataclass(frozen=True)
class Structure:
    has_index: bool = False
    """There is a moov box."""
    has_fragments: bool = False
    is_protected: bool = False
    missing_bytes: int = 0
    """How much of the last box lies beyond the end of the file."""


def examine(read_at: ReadAt, size: int) -> Structure:
    """Walk the boxes of a file of this size."""
    kinds: set[bytes] = set()
    is_protected, missing = False, 0
    for kind, start, end in _boxes(read_at, 0, size):
        kinds.add(kind)
        missing = max(missing, end - size)
        if kind == b"moov":
            is_protected = is_protected or _is_protected(read_at, start, min(end, size))
    return Structure(
        has_index=b"moov" in kinds,
        has_fragments=bool(kinds & {b"moof", b"styp"}),
        is_protected=is_protected,
        missing_bytes=missing,
    )


def _boxes(read_at: ReadAt, start: int, stop: int) -> Iterator[tuple[bytes, int, int]]:
    """Kind, start and end of each box's content; the end may lie beyond `stop`."""
    for _ in range(_BOXES_MAX):
        head = read_at(start, 16)
        if start + 8 > stop or len(head) < 8:
            return
        length, kind = struct.unpack(">I4s", head[:8])
        content = start + 8
        if length == 1 and len(head) == 16:
            length, content = struct.unpack(">Q", head[8:])[0], start + 16
        elif length == 0:  # to the end of what holds it
            length = stop - start
        if length < content - start:
            return
        yield kind, content, start + length
        start += length


def _is_protected(read_at: ReadAt, start: int, stop: int) -> bool:
    # Boxes nest only as deep as the kinds we descend into; a loop cannot be built from them,
    # because every box lies inside its parent and is at least eight bytes shorter.
    for kind, inner, end in _boxes(read_at, start, stop):
        end = min(end, stop)
        if kind == b"stsd":
            entries = islice(_boxes(read_at, inner + _STSD_HEADER_BYTES, end), _ENTRIES_MAX)
            if any(entry in _PROTECTED for entry, _, _ in entries):
                return True
        elif kind in _CONTAINERS and _is_protected(read_at, inner, end):
            return True
    return False
