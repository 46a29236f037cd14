"""Pictures made upright, whole and as small as wanted, by libavfilter. Runs in the child only.

Colours stay as they are stored, and so do their tags, but for three kinds of film: RGB becomes
what screens of old take (BT.709), the full range of numbers becomes the usual one, and HDR is
mapped to BT.709 if that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import av.error
import av.filter
from av.filter.context import FilterContext
from av.video.frame import VideoFrame

from intermission.media.film import HLG, RGB, Coding, Film, Rung

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
            cascade = _Cascade(frame, film, rungs, coding)
        yield from cascade.through(frame)
    if cascade is not None:
        yield from cascade.rest()


def _shape(frame: VideoFrame) -> tuple[int, int, str]:
    return frame.width, frame.height, frame.format.name


class _Cascade:
    """The source, what it needs, and one scaler after the other."""

    def __init__(
        self, frame: VideoFrame, film: Film, rungs: Sequence[Rung], coding: Coding
    ) -> None:
        self.shape = _shape(frame)
        self._graph = graph = av.filter.Graph()
        graph.threads = 1
        last, pad = _source(graph, frame), 0
        for name, arguments in _preparing(film):
            following = graph.add(name, arguments or None)
            last.link_to(following, pad)
            last, pad = following, 0
        self._sinks: list[FilterContext] = []
        for n, rung in enumerate(rungs):
            size = f"{rung.width}:{rung.height}:flags=bicubic"
            # Colours are mapped when the picture is as small as it may be, pixel by pixel.
            for colours in (_colours(film), *_mapping(film, coding)) if n == 0 else ("",):
                scaler = graph.add("scale", size + colours)
                last.link_to(scaler, pad)
                last, pad = scaler, 0
            sink = graph.add("buffersink")
            if n == 0:
                plain = graph.add("format", coding.pix_fmt)
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


def _source(graph: av.filter.Graph, frame: VideoFrame) -> FilterContext:
    return graph.add(
        "buffer",
        video_size=f"{frame.width}x{frame.height}",
        pix_fmt=frame.format.name,
        time_base=str(frame.time_base),
        pixel_aspect="1/1",
        colorspace=str(int(frame.colorspace)),
        range=str(int(frame.color_range)),
    )


def _preparing(film: Film) -> Iterator[tuple[str, str]]:
    """What every picture goes through before it is scaled."""
    if film.is_interlaced:  # each picture says whether it is, and which field comes first
        yield "bwdif", "mode=send_frame:parity=auto:deint=interlaced"
    yield from _UPRIGHT.get(film.rotation_deg, ())


def _mapping(film: Film, coding: Coding) -> Iterator[str]:
    """What becomes of colours, as options of a scaler."""
    if coding.tone_map:
        transfer = "arib-std-b67" if film.transfer == HLG else "smpte2084"
        yield (
            f":in_transfer={transfer}:in_primaries=bt2020:out_transfer=bt709:out_primaries=bt709"
            ":out_color_matrix=bt709:out_range=tv:intent=perceptual"
        )


def _colours(film: Film) -> str:
    return ":out_range=tv:out_color_matrix=bt709" if film.matrix == RGB else ":out_range=tv"


def _picture(sink: FilterContext) -> VideoFrame:
    frame = sink.pull()
    assert isinstance(frame, VideoFrame)
    return frame
