"""The chunks of a WAV file: enough to know whether audio lies where its header counts none."""

from __future__ import annotations

from collections.abc import Callable

UNKNOWN_BYTES = 0x7FFFF000
"""Programs that write to a pipe put about this, or more, where they do not know the size."""
SLACK_BYTES = 4096
"""As much may follow the last chunk without being audio."""
_CHUNKS_MAX = 1000
_BLOCK_BYTES = 1 << 20
_TAGS = (b"ID3", b"APETAGEX")
"""What players' programs append without a chunk around it."""

ReadAt = Callable[[int, int], bytes]


def uncounted_audio(read_at: ReadAt, size: int) -> int | None:
    """How many bytes of audio the header counts, where more audio follows; None where none does.

    A header without a size counts nothing: such a file is audio to its end.
    """
    data = _after(read_at, 12, b"data", size)
    if data is None:
        return None
    start, counted = data
    if counted == 0 or counted >= UNKNOWN_BYTES:
        return None
    end = start + counted + counted % 2
    rest = _end_of_chunks(read_at, end, size)
    if size - rest <= SLACK_BYTES or read_at(rest, 8).startswith(_TAGS):
        return None
    return counted if _has_any(read_at, rest, size) else None


def _after(read_at: ReadAt, at: int, wanted: bytes, size: int) -> tuple[int, int] | None:
    """Where the first chunk of this name has its content, and the size it claims."""
    for _ in range(_CHUNKS_MAX):
        head = read_at(at, 8)
        if len(head) < 8 or at >= size:
            return None
        length = int.from_bytes(head[4:], "little")
        if head[:4] == wanted:
            return at + 8, length
        at += 8 + length + length % 2
    return None


def _end_of_chunks(read_at: ReadAt, at: int, size: int) -> int:
    """Where whole chunks that follow each other from here on end."""
    for _ in range(_CHUNKS_MAX):
        head = read_at(at, 8)
        length = int.from_bytes(head[4:], "little")
        is_chunk = len(head) == 8 and all(32 <= one < 127 for one in head[:4])
        if not is_chunk or at + 8 + length > size:
            break
        at += 8 + length + length % 2
    return min(at, size)


def _has_any(read_at: ReadAt, at: int, size: int) -> bool:
    """Whether anything but zeros, which recorders pad with, lies from here to the end."""
    starts = range(at, size, _BLOCK_BYTES)
    return any(any(read_at(start, min(_BLOCK_BYTES, size - start))) for start in starts)
