"""Media segments of fragmented MP4, written and read back: bytes only, no libav.

A segment holds consecutive samples in decoding order, the first of which is shown first. It is
decoded when it is shown, and no sample is decoded after it is shown. So a segment begins exactly
where the one before it ends, whichever process wrote it; there are no edit lists and no negative
times, which players understand in different ways. Nothing else goes into the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

_KEY, _NOT_KEY = 0x02000000, 0x01010000
_STYP = b"\x00\x00\x00\x14stypmsdh\x00\x00\x00\x00msdh"
_EACH = 0x01000F01  # data offset; duration, size, flags and composition offset of each sample
_EVEN = 0x01000201  # data offset; size of each sample, for all keys of equal length
_TFHD, _TFHD_EVEN = 0x020000, 0x020028  # offsets count from the moof; a duration and flags for all


class NotASegment(ValueError):
    """Bytes that are no segment of ours."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One coded frame, or one packet of audio."""

    data: bytes
    pts: int
    is_key: bool


class SampleRow(NamedTuple):
    """What a segment says about one of its samples."""

    length: int
    """Ticks until the next one is decoded."""
    size_bytes: int
    is_key: bool
    shift: int
    """Ticks from when it is decoded until it is shown."""


@dataclass(frozen=True)
class Segment:
    """What the bytes of a segment say of themselves."""

    number: int
    start: int
    end: int
    shown: tuple[int, ...]
    """Presentation times, in decoding order."""
    keys: tuple[int, ...]
    """Presentation times of the key frames."""


def segment(number: int, samples: Sequence[Sample], end: int, *, track: int = 1) -> bytes:
    """The samples as one segment that lasts until `end`. Their times must differ."""
    decoded = decoding_times([sample.pts for sample in samples])
    lengths = [after - at for at, after in pairwise([*decoded, end])]
    is_even = len(set(lengths)) == 1 and all(sample.is_key for sample in samples)
    if is_even:
        tfhd = struct.pack(">IIII", _TFHD_EVEN, track, lengths[0], _KEY)
        rows = b"".join(struct.pack(">I", len(sample.data)) for sample in samples)
    else:
        tfhd = struct.pack(">II", _TFHD, track)
        rows = b"".join(
            struct.pack(
                ">IIIi",
                length,
                len(sample.data),
                _KEY if sample.is_key else _NOT_KEY,
                sample.pts - at,
            )
            for sample, at, length in zip(samples, decoded, lengths, strict=True)
        )
    flags = _EVEN if is_even else _EACH
    size_bytes = 8 + 16 + 8 + (8 + len(tfhd)) + 20 + (20 + len(rows))
    moof = box(
        b"moof",
        box(b"mfhd", struct.pack(">II", 0, number + 1)),
        box(
            b"traf",
            box(b"tfhd", tfhd),
            box(b"tfdt", struct.pack(">IQ", 1 << 24, decoded[0])),
            box(b"trun", struct.pack(">III", flags, len(samples), size_bytes + 8), rows),
        ),
    )
    return b"".join((_STYP, moof, box(b"mdat", *(sample.data for sample in samples))))


def decoding_times(shown: Sequence[int]) -> list[int]:
    """When samples that are shown at these times are decoded, in the same order.

    As evenly as possible: each as much before it is shown as the latest of them needs. Those at
    the beginning share what time there is, because nothing may be decoded before the first.
    """
    latest = list(accumulate(reversed(shown), min))[::-1]
    even, start = sorted(shown), shown[0]
    early = max(at - last for at, last in zip(even, latest, strict=True))
    crowd = sum(at - early <= start for at in even)
    step = max(1, (even[min(1, len(even) - 1)] - start) // (crowd + 1))
    times = [max(at - early, start + n * step) for n, at in enumerate(even)]
    following = latest[-1] + 1
    for n in reversed(range(len(times))):
        times[n] = following = min(times[n], latest[n], following - 1)
    if times[0] != start:
        raise ValueError("the first sample is not shown first, or the ticks are too coarse")
    return times


def read_segment(data: bytes) -> Segment:
    """Read a segment back. Raises `NotASegment` for anything that `segment` did not write."""
    try:
        found = dict(boxes(data, 0, len(data)))
        moof = dict(boxes(data, *found[b"moof"]))
        traf = dict(boxes(data, *moof[b"traf"]))
        (number,) = struct.unpack_from(">4xI", data, moof[b"mfhd"][0])
        (start,) = struct.unpack_from(">4xQ", data, traf[b"tfdt"][0])
        at, stop = traf[b"trun"]
        flags, count, offset = struct.unpack_from(">III", data, at)
        rows = _rows(flags, data[at + 12 : stop], data[slice(*traf[b"tfhd"])])
    except (KeyError, struct.error) as e:
        raise NotASegment(str(e)) from e
    payload = found[b"mdat"][1] - found[b"mdat"][0]
    begins = found[b"moof"][0] - 8 + offset
    if count != len(rows) or begins != found[b"mdat"][0] or sum(row[1] for row in rows) != payload:
        raise NotASegment("its samples do not add up")
    shown: list[int] = []
    keys: list[int] = []
    at = start
    for duration, _, flags, shift in rows:
        shown.append(at + shift)
        if flags == _KEY:
            keys.append(at + shift)
        at += duration
    return Segment(number - 1, start, at, tuple(shown), tuple(keys))


def first_sample(data: bytes) -> bytes:
    """The first sample of a segment, which is a key frame. Raises `NotASegment`."""
    rows = sample_rows(data)
    if not rows:
        raise NotASegment("it has no samples")
    return payload(data)[: rows[0].size_bytes]


def sample_rows(data: bytes) -> list[SampleRow]:
    """What a segment says about each of its samples. Raises `NotASegment`."""
    try:
        found = dict(boxes(data, 0, len(data)))
        traf = dict(boxes(data, *dict(boxes(data, *found[b"moof"]))[b"traf"]))
        at, stop = traf[b"trun"]
        (flags,) = struct.unpack_from(">I", data, at)
        rows = _rows(flags, data[at + 12 : stop], data[slice(*traf[b"tfhd"])])
    except (KeyError, struct.error) as e:
        raise NotASegment(str(e)) from e
    return [
        SampleRow(length, size_bytes, flags == _KEY, shift)
        for length, size_bytes, flags, shift in rows
    ]


def payload(data: bytes) -> bytes:
    """The samples of a segment, one after the other. Raises `NotASegment`."""
    found = dict(boxes(data, 0, len(data)))
    if b"mdat" not in found:
        raise NotASegment("it has no samples")
    return data[slice(*found[b"mdat"])]


def _rows(flags: int, rows: bytes, tfhd: bytes) -> list[tuple[int, int, int, int]]:
    """Duration, size, flags and composition offset of every sample."""
    if flags == _EACH:
        return list(struct.iter_unpack(">IIIi", rows))
    if flags != _EVEN:
        raise NotASegment(f"its samples are listed in another way ({flags:#x})")
    length, common = struct.unpack_from(">8xII", tfhd)
    return [(length, size_bytes, common, 0) for (size_bytes,) in struct.iter_unpack(">I", rows)]


def box(name: bytes, *parts: bytes) -> bytes:
    return struct.pack(">I4s", 8 + sum(map(len, parts)), name) + b"".join(parts)


def boxes(data: bytes, at: int, end: int) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """By name, where the contents of each box begin and end."""
    while at < end:
        size_bytes, name = struct.unpack_from(">I4s", data, at)
        if size_bytes < 8 or at + size_bytes > end:
            raise NotASegment(f"a box {name!r} of {size_bytes} bytes")
        yield name, (at + 8, at + size_bytes)
        at += size_bytes
