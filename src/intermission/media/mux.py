"""Video and audio segments muxed into one progressive MP4 file: nothing is encoded again.

Bytes only, no libav. The index of all samples comes first (moov), then their data by time (mdat):
a player can begin before it has the whole file, and seek in it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from intermission.media.fmp4 import NotASegment, SampleRow, box, boxes

_FTYP = box(b"ftyp", b"isom\0\0\2\0", b"isomiso2mp41")
_VERSION_1 = 1 << 24
"""Times have 64 bits."""
_OFFSET_MAX = 1 << 32


@dataclass(frozen=True)
class MuxTrack:
    """A track: its initialization segment, and the samples of each of its segments."""

    init: bytes
    segments: Sequence[Sequence[SampleRow]]


def in_order(frames: Iterable[float], audio: Iterable[float]) -> list[tuple[int, int]]:
    """Which segment comes when, by the seconds at which they begin: its track, and its place."""
    both = [(at, 0, n) for n, at in enumerate(frames)]
    both += [(at, 1, n) for n, at in enumerate(audio)]
    return [(track, n) for _, track, n in sorted(both)]


def header(tracks: Sequence[MuxTrack], order: Sequence[tuple[int, int]]) -> bytes:
    """Everything before the data of the segments, which must follow in this order."""
    sizes = [[sum(row.size_bytes for row in rows) for rows in one.segments] for one in tracks]
    payload = sum(map(sum, sizes))
    is_large = payload + _OFFSET_MAX // 64 >= _OFFSET_MAX
    offsets = [[0] * len(one.segments) for one in tracks]
    head = b"\0\0\0\1mdat" if is_large else struct.pack(">I4s", 8 + payload, b"mdat")
    head += struct.pack(">Q", 16 + payload) if is_large else b""
    try:
        # The offsets depend on the length of the index, and the length not on the offsets.
        at = len(_FTYP) + len(_moov(tracks, offsets, is_large=is_large)) + len(head)
        for track, n in order:
            offsets[track][n] = at
            at += sizes[track][n]
        return _FTYP + _moov(tracks, offsets, is_large=is_large) + head
    except (KeyError, struct.error) as e:
        raise NotASegment(f"no beginning of a track: {e}") from e


def _moov(tracks: Sequence[MuxTrack], offsets: Sequence[Sequence[int]], *, is_large: bool) -> bytes:
    mvhd = _contents(_contents(tracks[0].init)[b"moov"])[b"mvhd"]
    (scale,) = struct.unpack_from(">I", mvhd, 12)
    lengths = [_length(one, scale) for one in tracks]
    times = struct.pack(">IQQIQ", _VERSION_1, 0, 0, scale, max(lengths))
    following = struct.pack(">I", len(tracks) + 1)
    return box(
        b"moov",
        box(b"mvhd", times, mvhd[20:-4], following),
        *(
            _trak(one, number, length, _table(one, places, is_large=is_large))
            for number, (one, length, places) in enumerate(
                zip(tracks, lengths, offsets, strict=True), 1
            )
        ),
    )


def _length(track: MuxTrack, scale: int) -> int:
    """How long a track is, in ticks of the whole file."""
    mdia = _contents(_contents(_contents(track.init)[b"moov"])[b"trak"])[b"mdia"]
    (own,) = struct.unpack_from(">I", _contents(mdia)[b"mdhd"], 12)
    return -(-_ticks(track) * scale // own)


def _ticks(track: MuxTrack) -> int:
    return sum(row.length for rows in track.segments for row in rows)


def _trak(track: MuxTrack, number: int, length: int, table: bytes) -> bytes:
    """The track of an initialization segment, with its number, its length and all its samples."""

    def tkhd(old: bytes) -> bytes:
        flags = _VERSION_1 | int.from_bytes(old[:4], "big")
        return struct.pack(">IQQIIQ", flags, 0, 0, number, 0, length) + old[24:]

    def mdhd(old: bytes) -> bytes:
        (scale,) = struct.unpack_from(">I", old, 12)
        return struct.pack(">IQQIQ", _VERSION_1, 0, 0, scale, _ticks(track)) + old[20:]

    def stbl(old: bytes) -> bytes:
        return box(b"stsd", _contents(old)[b"stsd"]) + table

    def minf(old: bytes) -> bytes:
        return _replaced(old, {b"stbl": stbl})

    def mdia(old: bytes) -> bytes:
        return _replaced(old, {b"mdhd": mdhd, b"minf": minf})

    trak = _contents(_contents(track.init)[b"moov"])[b"trak"]
    return box(b"trak", _replaced(trak, {b"tkhd": tkhd, b"mdia": mdia}))


def _table(track: MuxTrack, offsets: Sequence[int], *, is_large: bool) -> bytes:
    """When each sample is decoded and shown, how large it is, and where its segment is."""
    rows = [row for segment in track.segments for row in segment]
    parts = [_runs(b"stts", (row.length for row in rows))]
    if any(row.shift for row in rows):
        parts.append(_runs(b"ctts", (row.shift for row in rows)))
    if not all(row.is_key for row in rows):
        keys = [n for n, row in enumerate(rows, 1) if row.is_key]
        parts.append(_list(b"stss", "I", keys))
    counts = [len(segment) for segment in track.segments]
    first = [n for n, count in enumerate(counts) if n == 0 or counts[n - 1] != count]
    chunks = b"".join(struct.pack(">III", n + 1, counts[n], 1) for n in first)
    parts.append(box(b"stsc", struct.pack(">II", 0, len(first)), chunks))
    sizes = struct.pack(f">{len(rows)}I", *(row.size_bytes for row in rows))
    parts.append(box(b"stsz", struct.pack(">III", 0, 0, len(rows)), sizes))
    parts.append(_list(b"co64" if is_large else b"stco", "Q" if is_large else "I", offsets))
    return b"".join(parts)


def _runs(name: bytes, values: Iterable[int]) -> bytes:
    """A table of how often each value is repeated."""
    runs = [(len(list(alike)), value) for value, alike in groupby(values)]
    entries = b"".join(struct.pack(">II", *run) for run in runs)
    return box(name, struct.pack(">II", 0, len(runs)), entries)


def _list(name: bytes, form: str, values: Sequence[int]) -> bytes:
    return box(
        name, struct.pack(">II", 0, len(values)), struct.pack(f">{len(values)}{form}", *values)
    )


def _replaced(data: bytes, changes: dict[bytes, Callable[[bytes], bytes]]) -> bytes:
    """The boxes in here, some of them with other contents."""
    return b"".join(
        box(name, changes[name](data[at:end]) if name in changes else data[at:end])
        for name, (at, end) in boxes(data, 0, len(data))
    )


def _contents(data: bytes) -> dict[bytes, bytes]:
    return {name: data[at:end] for name, (at, end) in boxes(data, 0, len(data))}
