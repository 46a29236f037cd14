"""A section of a video, encoded in several sizes at once. Runs in the child only.

One decoder feeds the scalers, and they feed an encoder for each size. The times of frames
alone decide which belong to the section, so that two neighbouring sections share no frame and lose
none, wherever the source has its key frames. Every segment begins with a key frame.
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

from intermission.media.fmp4 import Sample, segment
from intermission.media.refusal import AGAIN, Refused
from intermission.media.scaling import scaled_frames
from intermission.media.video_info import EncoderSettings, RenditionSize, Section, VideoTrack

_START_CODE = re.compile(b"\\x00\\x00\\x00?\\x01")
_LONG = 1 << 20
"""The encoder makes no key frame by itself: each one is requested."""
_TAGS = {"hevc": "hvc1"}
_USUAL_RANGE = 1
_DELIMITER = b"\x12\x00"
"""Precedes every frame of AV1 in a stream; MP4 leaves it out."""
_NO_DEVICE = "Leave out --hardware, or use a machine that has the device and its driver."
_OTHER_SETTINGS = "Check --preset, --codec and --ladder."


class Emit(Protocol):
    """Sends the initialization segment of a rendition, or its next segment, to the caller."""

    def __call__(self, what: str, rendition: int, data: bytes) -> None: ...


def encode(
    coming: Iterator[tuple[int, VideoFrame]],
    tracks: Sequence[RenditionEncoder],
    video: VideoTrack,
    section: Section,
    settings: EncoderSettings,
    emit: Emit,
    progress: Callable[[float], None],
    known: Callable[[], Sequence[int]],
) -> None:
    """Encode the frames of a section, with an encoder for each of its renditions.

    Raises `Refused` if frames are missing. Only then `known` is called: it tells when every frame
    of the video is shown.
    """
    for n, track in enumerate(tracks):
        emit("init", n, track.init)
    start, length = section.cuts[0], section.end - section.cuts[0]
    seen: list[int] = []
    stamped = _stamped(coming, video)
    for sizes in scaled_frames(stamped, video, section.renditions, settings):
        at = _time(sizes[0], video)
        if at >= section.end:
            break
        if at < start:
            continue
        seen.append(at)
        for n, frame in enumerate(sizes):
            for data in tracks[n].take(frame, at):
                emit("segment", n, data)
        progress((at - start) / length)
    if len(seen) != section.frames:
        raise _damage(video, section, seen, known())
    for n, track in enumerate(tracks):
        for data in track.finish():
            emit("segment", n, data)


def _stamped(coming: Iterator[tuple[int, VideoFrame]], video: VideoTrack) -> Iterator[VideoFrame]:
    """The frames with their times, which all filters pass on."""
    tick = Fraction(1, video.scale)
    for at, frame in coming:
        frame.pts, frame.time_base = at, tick
        yield frame


def _time(frame: VideoFrame, video: VideoTrack) -> int:
    assert frame.pts is not None
    assert frame.time_base is not None
    base = frame.time_base  # a filter may have made it finer
    return frame.pts * base.numerator * video.scale // base.denominator


def _damage(
    video: VideoTrack, section: Section, seen: Sequence[int], shown: Sequence[int]
) -> Refused:
    start, end = section.cuts[0], section.end
    wanted = {at for at in shown if start <= at < end}
    where = min(wanted.symmetric_difference(seen), default=start) / video.scale
    return Refused(
        f"is damaged at {where:.3f} s: from {start / video.scale:.3f} to {end / video.scale:.3f} s "
        f"it has {section.frames} frames, and {len(seen)} of them can be decoded.",
        AGAIN,
    )


def start_encoders(
    video: VideoTrack, section: Section, settings: EncoderSettings
) -> list[RenditionEncoder]:
    """An encoder for each rendition. Raises `Refused` if there is none that does what is wanted."""
    try:
        return [
            RenditionEncoder(video, section, settings, rendition)
            for rendition in section.renditions
        ]
    except av.error.FFmpegError as e:
        if isinstance(e, MemoryError):
            raise
        sizes = ", ".join(
            f"{rendition.width}x{rendition.height}" for rendition in section.renditions
        )
        raise Refused(
            f"cannot be encoded: {settings.encoder} does not start here for {sizes} with the "
            f"preset {settings.preset} ({e.strerror}).",
            _NO_DEVICE if settings.is_hardware else _OTHER_SETTINGS,
        ) from e


class RenditionEncoder:
    """One rendition's encoder, and its segments in the making."""

    def __init__(
        self,
        video: VideoTrack,
        section: Section,
        settings: EncoderSettings,
        rendition: RenditionSize,
    ) -> None:
        self._tick = Fraction(1, video.scale)
        self._section = section
        self._is_av1 = settings.codec == "av1"
        self._key = 0
        self._number = section.first_segment
        self._samples: list[Sample] = []
        header = BytesIO()
        self._container = _beginning(header, video)
        stream = self._container.add_stream(settings.encoder, options=_options(settings, rendition))
        assert isinstance(stream, VideoStream)
        self._stream = stream
        context = stream.codec_context
        context.width, context.height = rendition.width, rendition.height
        context.pix_fmt = settings.pix_fmt
        tags = video.tags(tone_map=settings.tone_map)
        context.color_primaries, context.color_trc, context.colorspace = tags
        context.color_range = _USUAL_RANGE
        context.time_base = self._tick
        context.framerate = _rate(video)
        context.thread_count = settings.threads
        context.gop_size = _LONG
        if settings.codec in _TAGS:
            context.codec_tag = _TAGS[settings.codec]
        self._container.start_encoding()
        self.init = header.getvalue()

    def take(self, frame: VideoFrame, at: int) -> Iterator[bytes]:
        """Encode a frame; the segments that are complete by now."""
        frame.pts, frame.time_base = at, self._tick
        frame.pict_type = PictureType.NONE
        if self._key < len(self._section.cuts) and at == self._section.cuts[self._key]:
            frame.pict_type = PictureType.I
            self._key += 1
        return self._kept(self._stream.encode(frame))

    def finish(self) -> Iterator[bytes]:
        yield from self._kept(self._stream.encode(None))
        if self._samples:
            yield self._segment(self._section.end)

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


def _rate(video: VideoTrack) -> Fraction:
    """Frames a second on average: what a rate control goes by."""
    rate = Fraction(video.frames * video.scale, video.end).limit_denominator(1001)
    return max(Fraction(1), min(rate, Fraction(240)))


def _beginning(header: BytesIO, video: VideoTrack) -> OutputContainer:
    """Where libav writes what comes before the first segment; the segments are ours."""
    options = {
        "movflags": "empty_moov+default_base_moof",
        "use_editlist": "0",
        "fflags": "bitexact",
        "video_track_timescale": str(video.scale),
    }
    return av.open(header, "w", format="mp4", options=options)


def _options(settings: EncoderSettings, rendition: RenditionSize) -> dict[str, str]:
    options = {
        "maxrate": f"{rendition.kbps}k",
        "bufsize": f"{2 * rendition.kbps}k",
        "preset": settings.preset,
        "flags": "+global_header+bitexact",
    }
    if settings.is_hardware:
        own = {
            "rc": "vbr",
            "cq": str(settings.crf),
            "b": "0",
            "forced-idr": "1",
            "no-scenecut": "1",
        }
        return options | own
    options["crf"] = str(settings.crf)
    own = {
        "libx264": {"forced-idr": "1", "x264-params": "scenecut=0:open-gop=0"},
        "libx265": {
            "forced-idr": "1",
            "x265-params": "scenecut=0:open-gop=0:log-level=none:frame-threads=1:"
            f"pools={settings.threads if settings.threads > 1 else 'none'}",
        },
        "libsvtav1": {
            "svtav1-params": "scd=0:enable-force-key-frames=1:irefresh-type=2:"
            f"lp={settings.threads}"
        },
    }
    return options | own.get(settings.encoder, {})


def _with_lengths(data: bytes) -> bytes:
    """Start codes, as encoders write them, replaced by lengths, as MP4 wants them."""
    return b"".join(len(unit).to_bytes(4, "big") + unit for unit in _START_CODE.split(data) if unit)
