"""Rotating, deinterlacing and scaling frames with libavfilter. Runs in the child only.

Colours and their tags stay as they are stored, with three exceptions: RGB becomes BT.709, full
range becomes limited range, and HDR is mapped to BT.709 if that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import av.error
import av.filter
from av.filter.context import FilterContext
from av.video.frame import VideoFrame

from intermission.media.video_info import HLG, RGB, EncoderSettings, RenditionSize, VideoTrack

Size = tuple[int, int]
AS_DECODED: Size = (0, 0)
"""Stands for the size that frames have when they are decoded: only their colours change."""
LARGE_LINES, MEDIUM_LINES, SMALL_LINES = 1080, 720, 480
_UPRIGHT = {
    90: (("transpose", "cclock"),),
    180: (("hflip", ""), ("vflip", "")),
    270: (("transpose", "clock"),),
}


def scaled_frames(
    decoded: Iterator[VideoFrame],
    video: VideoTrack,
    renditions: Sequence[RenditionSize],
    settings: EncoderSettings,
) -> Iterator[list[VideoFrame]]:
    """Each frame in every size."""
    scaling: _Scaling | None = None
    for frame in decoded:
        if scaling is None or scaling.shape != _shape(frame):
            if scaling is not None:  # frames of another size follow
                yield from scaling.rest()
            scaling = _Scaling(frame, video, renditions, settings)
        yield from scaling.through(frame)
    if scaling is not None:
        yield from scaling.rest()


def _shape(frame: VideoFrame) -> tuple[int, int, str]:
    return frame.width, frame.height, frame.format.name


class _Scaling:
    """The filters that turn one decoded frame into one frame for each rendition."""

    def __init__(
        self,
        frame: VideoFrame,
        video: VideoTrack,
        renditions: Sequence[RenditionSize],
        settings: EncoderSettings,
    ) -> None:
        self.shape = _shape(frame)
        self._graph = graph = av.filter.Graph()
        graph.threads = 1
        source = _source(graph, frame)
        for name, arguments in _preparing(video):
            source = _linked(source, graph.add(name, arguments or None))
        self._sinks = [graph.add("buffersink") for _ in renditions]
        self._conversions = [_colours(video), *_mapping(video, settings)]
        self._format = settings.pix_fmt
        ways = {n: scaling_path(video, rendition) for n, rendition in enumerate(renditions)}
        self._fork(source, ways, is_converted=False)
        graph.configure()

    def _fork(
        self, frames: FilterContext, ways: Mapping[int, Sequence[Size]], *, is_converted: bool
    ) -> None:
        """Lead frames to the sinks of the ways that end here, and on to the next sizes."""
        onward: dict[Size, dict[int, Sequence[Size]]] = {}
        for n, way in ways.items():
            if way:
                onward.setdefault(way[0], {})[n] = way[1:]
        ended = [n for n, way in ways.items() if not way]
        fork = _linked(frames, self._graph.add("split", str(len(ended) + len(onward))))
        for pad, n in enumerate(ended):
            fork.link_to(self._sinks[n], pad)
        for pad, (size, following) in enumerate(onward.items(), len(ended)):
            scaled = self._scaled(fork, pad, size, [""] if is_converted else self._conversions)
            if not is_converted:
                scaled = _linked(scaled, self._graph.add("format", self._format))
            self._fork(scaled, following, is_converted=True)

    def _scaled(
        self, frames: FilterContext, pad: int, size: Size, conversions: Sequence[str]
    ) -> FilterContext:
        # Colours are mapped when the frame has its new size, pixel by pixel.
        for conversion in conversions:
            options = f"{size[0]}:{size[1]}:flags=bicubic{conversion}"
            frames, pad = _linked(frames, self._graph.add("scale", options), pad), 0
        return frames

    def through(self, frame: VideoFrame) -> Iterator[list[VideoFrame]]:
        self._graph.push(frame)
        return self._pulled()

    def rest(self) -> Iterator[list[VideoFrame]]:
        self._graph.push(None)
        return self._pulled()

    def _pulled(self) -> Iterator[list[VideoFrame]]:
        while True:
            try:
                yield [_frame(sink) for sink in self._sinks]
            except (BlockingIOError, av.error.EOFError):
                return


def scaling_path(video: VideoTrack, rendition: RenditionSize) -> list[Size]:
    """The sizes a frame goes through on its way to a rendition, the last one its own.

    They depend on the video and the rendition alone, never on what else is encoded: the same task
    gives the same bytes whatever it is encoded with. The sizes in between are those that a usual
    ladder has anyway, so that its renditions share them.
    """
    lines, source_lines = min(rendition.width, rendition.height), min(video.width, video.height)
    path = [video.size_at(LARGE_LINES) if lines <= LARGE_LINES < source_lines else AS_DECODED]
    if lines <= SMALL_LINES and source_lines > MEDIUM_LINES:
        path.append(video.size_at(MEDIUM_LINES))
    return (
        path
        if path[-1] == (rendition.width, rendition.height)
        else [*path, (rendition.width, rendition.height)]
    )


def _linked(one: FilterContext, following: FilterContext, pad: int = 0) -> FilterContext:
    one.link_to(following, pad)
    return following


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


def _preparing(video: VideoTrack) -> Iterator[tuple[str, str]]:
    """The filters that every frame goes through before it is scaled."""
    if video.is_interlaced:  # each frame says whether it is, and which field comes first
        yield "bwdif", "mode=send_frame:parity=auto:deint=interlaced"
    yield from _UPRIGHT.get(video.rotation_deg, ())


def _mapping(video: VideoTrack, settings: EncoderSettings) -> Iterator[str]:
    """Tone mapping, as options of a scaler."""
    if settings.tone_map:
        transfer = "arib-std-b67" if video.transfer == HLG else "smpte2084"
        yield (
            f":in_transfer={transfer}:in_primaries=bt2020:out_transfer=bt709:out_primaries=bt709"
            ":out_color_matrix=bt709:out_range=tv:intent=perceptual"
        )


def _colours(video: VideoTrack) -> str:
    return ":out_range=tv:out_color_matrix=bt709" if video.matrix == RGB else ":out_range=tv"


def _frame(sink: FilterContext) -> VideoFrame:
    frame = sink.pull()
    assert isinstance(frame, VideoFrame)
    return frame
