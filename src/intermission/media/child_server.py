"""Answers a request. Runs in the child only, inside the sandbox."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Protocol

from intermission.media.audio_encoding import AudioSegmentWriter
from intermission.media.container import Examined, examine, open_container
from intermission.media.extraction import Extraction
from intermission.media.frame_index import index_frames
from intermission.media.frame_reader import frames
from intermission.media.request import Request
from intermission.media.seek import frames_of
from intermission.media.thumbnails import sheets
from intermission.media.video_encoding import RenditionEncoder, encode, start_encoders
from intermission.media.wav import WavWriter

_PROGRESS_EVERY_S = 0.25


class Say(Protocol):
    def __call__(self, **message: object) -> None: ...


def prepare(request: Request) -> list[RenditionEncoder]:
    """Open hardware encoders before the sandbox closes: their drivers open files."""
    wanted = request.encode
    if wanted is None or not wanted.settings.is_hardware:
        return []
    return start_encoders(wanted.video, wanted.section, wanted.settings)


def answer(
    request: Request, prepared: Sequence[RenditionEncoder], say: Say, send: Callable[[bytes], None]
) -> None:
    """Say what the file is, then answer the request."""
    fd = request.source_fd
    examined = examine(fd, request.kind, request.limits)
    say(info=asdict(examined.info))
    if request.task == "extract_audio":
        with open_container(fd, request.kind, request.limits) as container:
            writer = WavWriter(request.output_fd, request.rate_hz)
            extraction = Extraction(container, examined, writer, request.rate_hz, request.limits)
            say(extracted=extraction.run(fd, _Meter(say)))
    elif request.task == "frames":
        reopen = partial(open_container, fd, request.kind, request.limits)
        for ms, width, height, rgb in frames(reopen, examined, request.at_ms, fd):
            say(frame={"ms": ms, "width": width, "height": height})
            send(rgb)
    elif request.task == "index_frames" and all(
        one.attached_picture for one in examined.info.video
    ):
        say(video=None)
    elif request.task == "index_frames":
        found = index_frames(
            partial(open_container, fd, request.kind, request.limits), examined, fd
        )
        say(video=asdict(found.video), keys=len(found.keys))
        send(found.shown.tobytes() + found.keys.tobytes())
    else:
        _produce(request, prepared, examined, say, send)


def _produce(
    request: Request,
    prepared: Sequence[RenditionEncoder],
    examined: Examined,
    say: Say,
    send: Callable[[bytes], None],
) -> None:
    """Send encoded data: segments of video or audio, or thumbnails."""

    def emit(what: str, rendition: int, data: bytes) -> None:
        say(data={"what": what, "rendition": rendition, "bytes": len(data)})
        send(data)

    fd = request.source_fd
    reopen = partial(open_container, fd, request.kind, request.limits)
    if request.encode is not None:
        video, section, settings = (
            request.encode.video,
            request.encode.section,
            request.encode.settings,
        )
        tracks = prepared or start_encoders(video, section, settings)

        def known() -> Sequence[int]:
            return index_frames(reopen, examined, fd).shown

        counted = () if video.has_stamps else known()
        with frames_of(reopen, video, section, counted) as coming:
            encode(coming, tracks, video, section, settings, emit, _Meter(say), known)
    elif request.thumbnails is not None:
        with reopen() as container:
            for data in sheets(container, request.thumbnails):
                emit("sheet", 0, data)
    elif request.audio is not None:
        track = request.audio
        with reopen() as container:
            extraction = Extraction(
                container,
                examined,
                AudioSegmentWriter(track, emit),
                track.rate_hz,
                request.limits,
                layout=track.layout,
                stream=track.stream,
                samples_min=track.samples_min,
            )
            say(extracted=extraction.run(fd, _Meter(say)))


class _Meter:
    """Reports progress, but not with every packet."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._next_at = 0.0

    def __call__(self, fraction: float) -> None:
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + _PROGRESS_EVERY_S
            self._say(progress=min(max(fraction, 0.0), 1.0))
