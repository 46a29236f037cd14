"""Pictures made upright, whole and as small as wanted, by libavfilter. Runs in the child only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import av.error
import av.filter
from av.filter.context import FilterContext
from av.video.frame import VideoFrame

from intermission.media.film import Coding, Film, Rung

_UPRIGHT = {
    90: (("transpose", "cclock"),),
    180: (("hflip", ""), ("vflip", "")),
    270: (("transpose", "clock"),),
}


def in_all_sizes(
    decoded: Iterator[VideoFrame], film: Film, rungs: Sequence[Rung], coding: Coding
) -> Iterator[list[VideoFrame]]:
    """Each picture in every size, largest first."""
    cascade: _Cascade | None = None
    for frame in decoded:
        if cascade is None or cascade.shape != _shape(frame):
            if cascade is not None:  # pictures of another size follow
                yield from cascade.rest()
            cascade = _Cascade(frame, film, rungs)
        yield from cascade.through(frame)
    if cascade is not None:
        yield from cascade.rest()


def _shape(frame: VideoFrame) -> tuple[int, int, str]:
    return frame.width, frame.height, frame.format.name


class _Cascade:
    """The source, what it needs, and one scaler after the other."""

    def __init__(self, frame: VideoFrame, film: Film, rungs: Sequence[Rung]) -> None:
        self.shape = _shape(frame)
        self._graph = graph = av.filter.Graph()
        graph.threads = 1
        last, pad = graph.add_buffer(
            width=frame.width, height=frame.height, format=frame.format, time_base=frame.time_base
        ), 0  # fmt: skip
        for name, arguments in _preparing(film):
            following = graph.add(name, arguments or None)
            last.link_to(following, pad)
            last, pad = following, 0
        self._sinks: list[FilterContext] = []
        for n, rung in enumerate(rungs):
            scaler = graph.add("scale", f"{rung.width}:{rung.height}:flags=bicubic")
            last.link_to(scaler, pad)
            last, pad = scaler, 0
            sink = graph.add("buffersink")
            if n == 0:
                plain = graph.add("format", "yuv420p")
                last.link_to(plain)
                last = plain
            if n + 1 < len(rungs):
                fork = graph.add("split")
                last.link_to(fork)
                last, pad = fork, 1
                fork.link_to(sink)
            else:
                last.link_to(sink)
            self._sinks.append(sink)
        graph.configure()

    def through(self, frame: VideoFrame) -> Iterator[list[VideoFrame]]:
        self._graph.push(frame)
        return self._pulled()

    def rest(self) -> Iterator[list[VideoFrame]]:
        self._graph.push(None)
        return self._pulled()

    def _pulled(self) -> Iterator[list[VideoFrame]]:
        while True:
            try:
                yield [_picture(sink) for sink in self._sinks]
            except (BlockingIOError, av.error.EOFError):
                return


def _preparing(film: Film) -> Iterator[tuple[str, str]]:
    """What every picture goes through before it is scaled."""
    if film.interlaced:
        yield "bwdif", f"mode=send_frame:parity={film.interlaced}:deint=all"
    yield from _UPRIGHT.get(film.rotation_deg, ())


def _picture(sink: FilterContext) -> VideoFrame:
    frame = sink.pull()
    assert isinstance(frame, VideoFrame)
    return frame
