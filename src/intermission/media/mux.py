"""Video and audio segments muxed into one file: bytes only, no libav, nothing is encoded again.

What comes out is fragmented MP4: one beginning for both tracks, then their segments by time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from intermission.media.fmp4 import NotASegment, box, boxes

_SECOND = 2


def beginning(frames: bytes, audio: bytes | None) -> bytes:
    """The initialization segment of both tracks together."""
    try:
        top = _contents(frames)
        parts = _contents(top[b"moov"])
        moov = [box(b"mvhd", parts[b"mvhd"][:-4], struct.pack(">I", _SECOND + 1))]
        moov.append(box(b"trak", parts[b"trak"]))
        extends = [box(b"trex", _contents(parts[b"mvex"])[b"trex"])]
        if audio is not None:
            other = _contents(_contents(audio)[b"moov"])
            moov.append(box(b"trak", b"".join(_second_track(other[b"trak"]))))
            trex = _contents(other[b"mvex"])[b"trex"]
            extends.append(box(b"trex", trex[:4], struct.pack(">I", _SECOND), trex[8:]))
        return box(b"ftyp", top[b"ftyp"]) + box(b"moov", *moov, box(b"mvex", *extends))
    except (KeyError, struct.error) as e:
        raise NotASegment(f"no beginning of a track: {e}") from e


def _second_track(trak: bytes) -> Iterator[bytes]:
    for name, (at, end) in boxes(trak, 0, len(trak)):
        data = trak[at:end]
        if name == b"tkhd":
            number_at = 20 if data[0] else 12
            data = data[:number_at] + struct.pack(">I", _SECOND) + data[number_at + 4 :]
        yield box(name, data)


def fragment(data: bytes, number: int, *, is_second: bool) -> bytes:
    """A segment as part of a longer file, where it has another number."""
    try:
        found = dict(boxes(data, 0, len(data)))
        moof = dict(boxes(data, *found[b"moof"]))
        traf = dict(boxes(data, *moof[b"traf"]))
        made = bytearray(data)
        struct.pack_into(">I", made, moof[b"mfhd"][0] + 4, number)
        if is_second:
            struct.pack_into(">I", made, traf[b"tfhd"][0] + 4, _SECOND)
        return bytes(made[found[b"moof"][0] - 8 :])
    except (KeyError, struct.error) as e:
        raise NotASegment(str(e)) from e


def in_order(frames: Iterable[float], audio: Iterable[float]) -> list[tuple[bool, int]]:
    """Which segment comes when, by the seconds at which they begin: (is it audio, its place)."""
    both = [(at, False, n) for n, at in enumerate(frames)]
    both += [(at, True, n) for n, at in enumerate(audio)]
    return [(is_second, n) for _, is_second, n in sorted(both)]


def _contents(data: bytes) -> dict[bytes, bytes]:
    return {name: data[at:end] for name, (at, end) in boxes(data, 0, len(data))}
