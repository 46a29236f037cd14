"""Where a slot encodes the qualities of a passage at once, and keeps them for their tasks.

The first task of a passage makes what all of them need; each takes its own. What nobody came for
is thrown away when the next passage begins, and with the slot.
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
from intermission.media.film import Coding, Film, Passage, Rung
from intermission.media.fragments import Segment
from intermission.media.producing import encode
from intermission.pipelines.transcode.codecs import codecs_of
from intermission.pipelines.transcode.playlists import Part
from intermission.pipelines.transcode.shapes import Encoded, Piece
from intermission.settings import current

_S_PER_PIXEL = {"h264": 4e-7, "hevc": 4e-6, "av1": 4e-6}
"""What encoding may take, at most, on a slow machine that does other things too."""
_S_PER_DECODED_PIXEL = 1e-7
_S_PER_SKIPPED_S = 0.5
_START_S = 120


class Bench:
    """The qualities of one passage, encoded and not handed over yet."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Encoded, Path]] = {}
        self._folder: Path | None = None
        self._apart: frozenset[str] = frozenset()
        """Pieces that could not be encoded at once."""

    def provide(
        self,
        ctx: Context,
        source: Source,
        film: Film,
        passage: Passage,
        coding: Coding,
        pieces: Sequence[Piece],
    ) -> None:
        """Have the first of these pieces here: with it the others, if they can be encoded at once.

        One that cannot be encoded at all must not stop the others; then each is tried alone.
        """
        if pieces[0].canonical() in self._made:
            return
        named = frozenset(piece.canonical() for piece in pieces)
        if len(pieces) > 1 and not named <= self._apart:
            try:
                self._make(ctx, source, film, passage, coding, pieces)
            except Permanent as e:
                self._apart = named
                ctx.log.info("the qualities are encoded one by one: %s", e)
            else:
                return
        self._make(ctx, source, film, passage, coding, pieces[:1])

    def _make(
        self,
        ctx: Context,
        source: Source,
        film: Film,
        passage: Passage,
        coding: Coding,
        pieces: Sequence[Piece],
    ) -> None:
        """Encode a passage in these qualities. Their bytes don't depend on which they are."""
        assert ctx.folder is not None
        self._clear()
        # Beside the task's own folder: taking a file from here is then a rename.
        self._folder = Path(tempfile.mkdtemp(prefix="bench-", dir=ctx.folder.parent))
        rungs = tuple(Rung(one.width, one.height, one.kbps) for one in pieces)
        passage = replace(passage, rungs=rungs)
        making = [_Making(one, self._folder / one.quality) for one in pieces]

        def keep(rung: int, data: bytes, found: Segment | None) -> None:
            making[rung].keep(data, found)

        encode(
            source.path,
            film,
            passage,
            coding,
            keep,
            wall_s=wall_s(film, passage, coding),
            limits=Limits.of(current()),
            on_progress=ctx.progress,
        )
        self._made = {one.piece.canonical(): (one.encoded, one.folder) for one in making}

    def take(self, piece: Piece, ctx: Context) -> Encoded:
        """Move a quality's files among the outputs of its task."""
        encoded, folder = self._made.pop(piece.canonical())
        for path in sorted(folder.iterdir()):
            path.rename(ctx.out(f"{piece.quality}/{path.name}"))
        if not self._made:
            self._clear()
        return encoded

    def _clear(self) -> None:
        self._made = {}
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


class _Making:
    """One quality while it is being encoded."""

    def __init__(self, piece: Piece, folder: Path) -> None:
        self.piece = piece
        self.folder = folder
        self.encoded = Encoded(quality=piece.quality, codecs="", init_sha256="", parts=[])
        folder.mkdir()

    def keep(self, data: bytes, found: Segment | None) -> None:
        if found is None:
            self.encoded.codecs = codecs_of(data)
            self.encoded.init_sha256 = hashlib.sha256(data).hexdigest()
            if self.piece.first == 0:  # it is the same for every passage
                (self.folder / "init.mp4").write_bytes(data)
            return
        part = Part.of(found, len(data))
        self.encoded.parts.append(part)
        (self.folder / part.name).write_bytes(data)


def wall_s(film: Film, passage: Passage, coding: Coding) -> float:
    """How long it may take: by the pictures to be made, and those to be decoded on the way."""
    made = passage.frames * sum(rung.width * rung.height for rung in passage.rungs)
    begin = passage.keys[-1] - film.origin if passage.keys else 0
    decoded_s = (passage.end - begin) / film.scale
    decoded = decoded_s * _fps(film) * film.width * film.height
    # Where no key frame can be begun with, everything before the passage is decoded as well.
    before_s = passage.cuts[0] / film.scale
    return (
        _START_S
        + made * _S_PER_PIXEL[coding.codec]
        + decoded * _S_PER_DECODED_PIXEL
        + before_s * _S_PER_SKIPPED_S
    )


def _fps(film: Film) -> float:
    return film.frames * film.scale / max(1, film.end)
