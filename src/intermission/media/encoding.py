"""A passage of a film, encoded in several sizes at once. Runs in the child only.

One decoder feeds the scalers, and they feed an encoder for each size. Which pictures belong to the
passage is decided by their times alone, so that two passages that touch share none and lose none,
wherever the source has its key frames. Every segment begins with a key frame.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from io import BytesIO
from typing import Protocol

import av
import av.error
from av.container import OutputContainer
from av.video.frame import PictureType, VideoFrame
from av.video.stream import VideoStream

from intermission.media.film import Coding, Film, Passage, Rung
from intermission.media.fragments import Sample, segment
from intermission.media.refusal import AGAIN, Refused
from intermission.media.scaling import in_all_sizes

_START_CODE = re.compile(b"\\x00\\x00\\x00?\\x01")
_LONG = 1 << 20
"""No key frame comes by itself: those that are wanted are asked for."""
_TAGS = {"hevc": "hvc1"}
_USUAL_RANGE = 1
_DELIMITER = b"\x12\x00"
"""Begins every picture of AV1 in a stream; in MP4 it is left out."""
_NO_DEVICE = "Leave out --hardware, or run it where there is such a device with its driver."
_OTHER_SETTINGS = "Check --preset, --codec and --ladder."


class Hand(Protocol):
    """Hands a quality's beginning, or its next segment, to whoever asked for it."""

    def __call__(self, what: str, rung: int, data: bytes) -> None: ...


def encode(
    coming: Iterator[tuple[int, VideoFrame]],
    tracks: Sequence[Track],
    film: Film,
    passage: Passage,
    coding: Coding,
    hand: Hand,
    progress: Callable[[float], None],
    known: Callable[[], Sequence[int]],
) -> None:
    """Encode the pictures of a passage, a track for each of its rungs.

    Raises `Refused` if they are not those it has. `known` is asked only then: it tells when every
    picture of the film is shown.
    """
    for n, track in enumerate(tracks):
        hand("init", n, track.init)
    start, length = passage.cuts[0], passage.end - passage.cuts[0]
    seen: list[int] = []
    stamped = _stamped(coming, film)
    for sizes in in_all_sizes(stamped, film, passage.rungs, coding):
        at = _time(sizes[0], film)
        if at >= passage.end:
            break
        if at < start:
            continue
        seen.append(at)
        for n, picture in enumerate(sizes):
            for data in tracks[n].take(picture, at):
                hand("segment", n, data)
        progress((at - start) / length)
    if len(seen) != passage.frames:
        raise _damage(film, passage, seen, known())
    for n, track in enumerate(tracks):
        for data in track.finish():
            hand("segment", n, data)


def _stamped(coming: Iterator[tuple[int, VideoFrame]], film: Film) -> Iterator[VideoFrame]:
    """Pictures that carry their times through all filters."""
    tick = Fraction(1, film.scale)
    for at, picture in coming:
        picture.pts, picture.time_base = at, tick
        yield picture


def _time(picture: VideoFrame, film: Film) -> int:
    assert picture.pts is not None
    assert picture.time_base is not None
    base = picture.time_base  # a filter may have made it finer
    return picture.pts * base.numerator * film.scale // base.denominator


def _damage(film: Film, passage: Passage, seen: Sequence[int], shown: Sequence[int]) -> Refused:
    start, end = passage.cuts[0], passage.end
    wanted = {at for at in shown if start <= at < end}
    where = min(wanted.symmetric_difference(seen), default=start) / film.scale
    return Refused(
        f"is damaged at {where:.3f} s: from {start / film.scale:.3f} to {end / film.scale:.3f} s "
        f"it has {passage.frames} pictures, and {len(seen)} of them can be decoded.",
        AGAIN,
    )


def started(film: Film, passage: Passage, coding: Coding) -> list[Track]:
    """An encoder for each rung. Raises `Refused` if there is none that does what is wanted."""
    try:
        return [Track(film, passage, coding, rung) for rung in passage.rungs]
    except av.error.FFmpegError as e:
        if isinstance(e, MemoryError):
            raise
        sizes = ", ".join(f"{rung.width}x{rung.height}" for rung in passage.rungs)
        raise Refused(
            f"cannot be encoded: {coding.encoder} does not start here, for {sizes} with the preset "
            f"{coding.preset} ({e.strerror}).",
            _NO_DEVICE if coding.is_hardware else _OTHER_SETTINGS,
        ) from e


class Track:
    """One quality's encoder, and its segments in the making."""

    def __init__(self, film: Film, passage: Passage, coding: Coding, rung: Rung) -> None:
        self._tick = Fraction(1, film.scale)
        self._passage = passage
        self._is_av1 = coding.codec == "av1"
        self._key = 0
        self._number = passage.first_segment
        self._samples: list[Sample] = []
        header = BytesIO()
        self._container = _beginning(header, film)
        stream = self._container.add_stream(coding.encoder, options=_options(coding, rung))
        assert isinstance(stream, VideoStream)
        self._stream = stream
        context = stream.codec_context
        context.width, context.height = rung.width, rung.height
        context.pix_fmt = coding.pix_fmt
        tags = film.tags(tone_map=coding.tone_map)
        context.color_primaries, context.color_trc, context.colorspace = tags
        context.color_range = _USUAL_RANGE
        context.time_base = self._tick
        context.framerate = _rate(film)
        context.thread_count = coding.threads
        context.gop_size = _LONG
        if coding.codec in _TAGS:
            context.codec_tag = _TAGS[coding.codec]
        self._container.start_encoding()
        self.init = header.getvalue()

    def take(self, picture: VideoFrame, at: int) -> Iterator[bytes]:
        """Encode a picture; the segments that are complete by now."""
        picture.pts, picture.time_base = at, self._tick
        picture.pict_type = PictureType.NONE
        if self._key < len(self._passage.cuts) and at == self._passage.cuts[self._key]:
            picture.pict_type = PictureType.I
            self._key += 1
        return self._kept(self._stream.encode(picture))

    def finish(self) -> Iterator[bytes]:
        yield from self._kept(self._stream.encode(None))
        if self._samples:
            yield self._segment(self._passage.end)

    def _kept(self, packets: Sequence[av.Packet]) -> Iterator[bytes]:
        for packet in packets:
            assert packet.pts is not None
            if packet.is_keyframe and self._samples:
                yield self._segment(packet.pts)
            data = bytes(packet)
            data = data.removeprefix(_DELIMITER) if self._is_av1 else _with_lengths(data)
            self._samples.append(Sample(data, packet.pts, packet.is_keyframe))

    def _segment(self, end: int) -> bytes:
        samples, self._samples = self._samples, []
        data = segment(self._number, samples, end)
        self._number += 1
        return data


def _rate(film: Film) -> Fraction:
    """Pictures a second on average: what a rate control goes by."""
    rate = Fraction(film.frames * film.scale, film.end).limit_denominator(1001)
    return max(Fraction(1), min(rate, Fraction(240)))


def _beginning(header: BytesIO, film: Film) -> OutputContainer:
    """Where libav writes what comes before the first segment; the segments are ours."""
    options = {
        "movflags": "empty_moov+default_base_moof",
        "use_editlist": "0",
        "fflags": "bitexact",
        "video_track_timescale": str(film.scale),
    }
    return av.open(header, "w", format="mp4", options=options)


def _options(coding: Coding, rung: Rung) -> dict[str, str]:
    options = {
        "maxrate": f"{rung.kbps}k",
        "bufsize": f"{2 * rung.kbps}k",
        "preset": coding.preset,
        "flags": "+global_header+bitexact",
    }
    if coding.is_hardware:
        own = {"rc": "vbr", "cq": str(coding.crf), "b": "0", "forced-idr": "1", "no-scenecut": "1"}
        return options | own
    options["crf"] = str(coding.crf)
    own = {
        "libx264": {"forced-idr": "1", "x264-params": "scenecut=0:open-gop=0"},
        "libx265": {
            "forced-idr": "1",
            "x265-params": "scenecut=0:open-gop=0:log-level=none:frame-threads=1:"
            f"pools={coding.threads if coding.threads > 1 else 'none'}",
        },
        "libsvtav1": {
            "svtav1-params": f"scd=0:enable-force-key-frames=1:irefresh-type=2:lp={coding.threads}"
        },
    }
    return options | own.get(coding.encoder, {})


def _with_lengths(data: bytes) -> bytes:
    """Start codes, as encoders write them, replaced by lengths, as MP4 wants them."""
    return b"".join(len(unit).to_bytes(4, "big") + unit for unit in _START_CODE.split(data) if unit)
