"""Several renditions of a chunk encoded in one go, so that the source is decoded once.

The first task of a batch encodes for all of them, and each task takes its own rendition. What no
task took is thrown away when the next batch begins, and with the slot.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from intermission import Context, Source
from intermission.errors import Permanent
from intermission.media import Limits
from intermission.media.encode_client import encode_video
from intermission.media.fmp4 import Segment
from intermission.media.video_info import EncoderSettings, RenditionSize, Section, VideoTrack
from intermission.pipelines.transcode.codecs import codecs_of
from intermission.pipelines.transcode.playlists import SegmentFile
from intermission.pipelines.transcode.results import EncodeChunk, Encoded
from intermission.settings import current

_S_PER_PIXEL = {"h264": 4e-7, "hevc": 4e-6, "av1": 4e-6}
"""The most that encoding may take, on a slow machine that does other things too."""
_S_PER_DECODED_PIXEL = 1e-7
_S_PER_SKIPPED_S = 0.5
_START_S = 120


class SharedEncode:
    """The renditions of one batch that are encoded and not yet taken."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Encoded, Path]] = {}
        self._folder: Path | None = None
        self._apart: frozenset[str] = frozenset()
        """Chunks that could not be encoded together."""

    def provide(
        self,
        ctx: Context,
        source: Source,
        video: VideoTrack,
        section: Section,
        settings: EncoderSettings,
        chunks: Sequence[EncodeChunk],
    ) -> None:
        """Encode the first of these chunks, and the others with it if they can be.

        A rendition that can't be encoded must not stop the others: then each is tried alone.
        """
        if chunks[0].canonical() in self._made:
            return
        named = frozenset(chunk.canonical() for chunk in chunks)
        if len(chunks) > 1 and not named <= self._apart:
            try:
                self._make(ctx, source, video, section, settings, chunks)
            except Permanent as e:
                self._apart = named
                ctx.log.info("the renditions are encoded one by one: %s", e)
            else:
                return
        self._make(ctx, source, video, section, settings, chunks[:1])

    def _make(
        self,
        ctx: Context,
        source: Source,
        video: VideoTrack,
        section: Section,
        settings: EncoderSettings,
        chunks: Sequence[EncodeChunk],
    ) -> None:
        """Encode a section in these renditions. The bytes of each don't depend on the others."""
        assert ctx.folder is not None
        self._clear()
        # Beside the task's own folder: taking a file from here is then a rename.
        self._folder = Path(tempfile.mkdtemp(prefix="encode-", dir=ctx.folder.parent))
        renditions = tuple(RenditionSize(one.width, one.height, one.kbps) for one in chunks)
        section = replace(section, renditions=renditions)
        making = [_Making(one, self._folder / one.rendition) for one in chunks]

        def keep(rendition: int, data: bytes, found: Segment | None) -> None:
            making[rendition].keep(data, found)

        encode_video(
            source.path,
            video,
            section,
            settings,
            keep,
            wall_s=wall_s(video, section, settings),
            limits=Limits.of(current()),
            on_progress=ctx.progress,
        )
        self._made = {one.chunk.canonical(): (one.encoded, one.folder) for one in making}

    def take(self, chunk: EncodeChunk, ctx: Context) -> Encoded:
        """Move a rendition's files to the outputs of its task."""
        encoded, folder = self._made.pop(chunk.canonical())
        for path in sorted(folder.iterdir()):
            path.rename(ctx.out(f"{chunk.rendition}/{path.name}"))
        if not self._made:
            self._clear()
        return encoded

    def _clear(self) -> None:
        self._made = {}
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


class _Making:
    """One rendition while it is being encoded."""

    def __init__(self, chunk: EncodeChunk, folder: Path) -> None:
        self.chunk = chunk
        self.folder = folder
        self.encoded = Encoded(rendition=chunk.rendition, codecs="", init_sha256="", segments=[])
        folder.mkdir()

    def keep(self, data: bytes, found: Segment | None) -> None:
        if found is None:
            self.encoded.codecs = codecs_of(data)
            self.encoded.init_sha256 = hashlib.sha256(data).hexdigest()
            if self.chunk.first == 0:  # it is the same for every chunk
                (self.folder / "init.mp4").write_bytes(data)
            return
        segment = SegmentFile.of(found, len(data))
        self.encoded.segments.append(segment)
        (self.folder / segment.name).write_bytes(data)


def wall_s(video: VideoTrack, section: Section, settings: EncoderSettings) -> float:
    """How long encoding may take: by the frames to encode, and those to decode on the way."""
    made = section.frames * sum(one.width * one.height for one in section.renditions)
    begin = section.keys[-1] - video.origin if section.keys else 0
    decoded_s = (section.end - begin) / video.scale
    decoded = decoded_s * _fps(video) * video.width * video.height
    # Where decoding can't start at a key frame, everything before the section is decoded as well.
    before_s = section.cuts[0] / video.scale
    return (
        _START_S
        + made * _S_PER_PIXEL[settings.codec]
        + decoded * _S_PER_DECODED_PIXEL
        + before_s * _S_PER_SKIPPED_S
    )


def _fps(video: VideoTrack) -> float:
    return video.frames * video.scale / max(1, video.end)
