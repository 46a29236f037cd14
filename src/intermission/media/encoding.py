"""A passage of a film, encoded in several sizes at once. Runs in the child only.

One decoder feeds a cascade of scalers, each scaler the next one and an encoder. Which pictures
belong to the passage is decided by their times alone, so that two passages that touch share none
and lose none, wherever the source has its key frames. Every segment begins with a key frame.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from io import BytesIO
from typing import Protocol

import av
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


class Hand(Protocol):
    """Hands a quality's beginning, or its next segment, to whoever asked for it."""

    def __call__(self, what: str, rung: int, data: bytes) -> None: ...


def encode(
    decoded: Iterator[VideoFrame],
    film: Film,
    passage: Passage,
    coding: Coding,
    hand: Hand,
    progress: Callable[[float], None],
) -> None:
    """Encode the pictures of a passage. Raises `Refused` if they are not those it has."""
    tracks = [_Track(film, passage, coding, rung) for rung in passage.rungs]
    for n, track in enumerate(tracks):
        hand("init", n, track.init)
    start, length = passage.cuts[0], passage.end - passage.cuts[0]
    count = 0
    for at, sizes in _wanted(in_all_sizes(decoded, film, passage.rungs, coding), film, passage):
        count += 1
        for n, picture in enumerate(sizes):
            for data in tracks[n].take(picture, at):
                hand("segment", n, data)
        progress((at - start) / length)
    if count != passage.frames:
        raise Refused(
            f"is damaged: between {_seconds(start, film)} and {_seconds(passage.end, film)} it has "
            f"{passage.frames} pictures, of which {count} can be decoded.",
            AGAIN,
        )
    for n, track in enumerate(tracks):
        for data in track.finish():
            hand("segment", n, data)


def _wanted(
    pictures: Iterator[list[VideoFrame]], film: Film, passage: Passage
) -> Iterator[tuple[int, list[VideoFrame]]]:
    """The pictures of the passage, each with its time."""
    last = passage.cuts[0] - 1
    for number, sizes in enumerate(pictures):
        at = _time(sizes[0], film) if film.has_stamps else number * passage.end // film.frames
        if at >= passage.end:
            return
        if at < passage.cuts[0]:
            continue
        if at <= last:
            raise Refused(f"shows two pictures at {_seconds(at, film)}.", AGAIN)
        last = at
        yield at, sizes


def _time(picture: VideoFrame, film: Film) -> int:
    if picture.pts is None or picture.time_base is None:
        raise Refused("has a picture without a time.", AGAIN)
    return round(picture.pts * picture.time_base * film.scale) - film.origin


def _seconds(at: int, film: Film) -> str:
    return f"{at / film.scale:.3f} s"


class _Track:
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
        context.pix_fmt = "yuv420p"
        context.time_base = self._tick
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
            data = bytes(packet) if self._is_av1 else _with_lengths(bytes(packet))
            self._samples.append(Sample(data, packet.pts, packet.is_keyframe))

    def _segment(self, end: int) -> bytes:
        samples, self._samples = self._samples, []
        data = segment(self._number, samples, end)
        self._number += 1
        return data


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
        "crf": str(coding.crf),
        "flags": "+global_header+bitexact",
    }
    own = {
        "libx264": {"forced-idr": "1", "x264-params": "scenecut=0:open-gop=0"},
        "libx265": {
            "forced-idr": "1",
            "x265-params": "scenecut=0:open-gop=0:log-level=none:pools=none:frame-threads=1",
        },
        "libsvtav1": {"svtav1-params": "scd=0:enable-force-key-frames=1:irefresh-type=2"},
    }
    return options | own.get(coding.encoder, {})


def _with_lengths(data: bytes) -> bytes:
    """Start codes, as encoders write them, replaced by lengths, as MP4 wants them."""
    return b"".join(len(unit).to_bytes(4, "big") + unit for unit in _START_CODE.split(data) if unit)
