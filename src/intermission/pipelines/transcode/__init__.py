"""`transcode`: a film in several qualities, cut into segments that any player takes.

    probe ─ rungs ─ pieces ─ encode ─┬─ package ─ verdict
    └────── tracks ───────── sound ──┘

No copy of the source is cut up: every passage is read from the source itself, and decides by the
times of the pictures which are its own. One decoder feeds all qualities of a passage, and each
quality has its own receipt. Sound is encoded once, from end to end.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from intermission import Context, Pipeline, Source, step
from intermission.errors import Permanent
from intermission.media import Limits
from intermission.media import probe as look
from intermission.media.film import Coding, Film, Passage, Rung
from intermission.media.fragments import Segment
from intermission.media.order import Soundtrack
from intermission.media.producing import cut, soundtrack, survey
from intermission.pipelines.transcode import ladder as ladders
from intermission.pipelines.transcode.bench import Bench
from intermission.pipelines.transcode.codecs import ENCODERS, versions
from intermission.pipelines.transcode.ladder import Ladder, Quality, Rungs
from intermission.pipelines.transcode.playlists import (
    Part,
    Rendition,
    manifest,
    master_playlist,
    media_playlist,
)
from intermission.pipelines.transcode.shapes import Encoded, Package, Piece, Probed, Sound, Track
from intermission.settings import current

SegmentLength = Annotated[int, Field(ge=1, le=30, description="length of a segment, in seconds")]
ChunkLength = Annotated[int, Field(ge=1, le=3600, description="length of a passage, in seconds")]
Codec = Annotated[Literal["h264", "hevc", "av1"], Field(description="h264, hevc or av1")]
Preset = Annotated[
    str, Field(pattern=r"^[a-z0-9]+$", description="the encoder's preset, such as veryfast")
]
Crf = Annotated[int, Field(ge=0, le=63, description="constant quality; lower is better")]
Threads = Annotated[int, Field(ge=1, le=64, description="threads of one encoder")]
Encoder = Annotated[str, Field(description="the encoder and its version; found by itself")]
AudioRate = Annotated[int, Field(ge=24, le=512, description="kbit/s of a stereo track")]

SOUND_HZ = 48_000


@step(version=1)
def probe(ctx: Context, source: Source) -> Probed:
    """Find out what the source is, and when each of its pictures is shown."""
    limits = Limits.of(current())
    path = ctx.out("stamps")
    info = look(source.path, limits=limits)
    if all(stream.attached_picture for stream in info.video):
        path.write_bytes(b"")
        return Probed(
            film=None, audio=list(info.audio), duration_ms=info.duration_ms, stamps=path, keys=0
        )
    found = survey(source.path, limits=limits)
    path.write_bytes(found.shown.tobytes() + found.keys.tobytes())
    return Probed(
        film=found.film,
        audio=list(info.audio),
        duration_ms=info.duration_ms,
        stamps=path,
        keys=len(found.keys),
    )


@step(version=1)
def rungs(ctx: Context, probe: Probed, ladder: Ladder = ladders.DEFAULT) -> Rungs:
    """Decide which qualities the film is offered in."""
    if probe.film is None:
        return Rungs(qualities=[], skipped=[])
    chosen = ladders.choose(probe.film, ladder)
    for one in chosen.skipped:
        ctx.log.info("%s is skipped: %s", one.name, one.reason)
    return chosen


@step(version=1)
def pieces(
    probe: Probed,
    rungs: Rungs,
    segment_seconds: SegmentLength = 4,
    chunk_seconds: ChunkLength = 60,
) -> list[Piece]:
    """Cut the film into passages, each in every quality."""
    if probe.film is None:
        return []
    return [
        Piece(
            first=passage.first_segment,
            segments=len(passage.cuts),
            quality=one.name,
            width=one.width,
            height=one.height,
            kbps=one.kbps,
        )
        for passage in _passages(probe, probe.film, segment_seconds, chunk_seconds)
        for one in rungs.qualities
    ]


@step(version=1, attempts=4, on_error="gap", together=("first", "segments"), publish="{name}")
def encode(
    ctx: Context,
    source: Source,
    probe: Probed,
    piece: Piece,
    segment_seconds: SegmentLength = 4,
    codec: Codec = "h264",
    preset: Preset = "veryfast",
    crf: Crf = 23,
    threads: Threads = 1,
    encoder: Encoder = "",
) -> Encoded:
    """Encode a passage; with it, in the same go, the other qualities this slot was given."""
    assert probe.film is not None
    if not _bench.has(piece):
        others = [one for one in ctx.together if isinstance(one, Piece) and one != piece]
        wanted = sorted([piece, *others], key=lambda one: (-one.width * one.height, one.quality))
        coding = Coding(codec, ENCODERS[codec], preset, crf, threads)
        length_s = piece.segments * segment_seconds
        (passage,) = (
            replace(one, rungs=tuple(Rung(rung.width, rung.height, rung.kbps) for rung in wanted))
            for one in _passages(probe, probe.film, segment_seconds, length_s)
            if one.first_segment == piece.first
        )
        _bench.make(ctx, source, probe.film, passage, coding, wanted)
    return _bench.take(piece, ctx)


_bench = Bench()


@step(version=1)
def tracks(probe: Probed) -> list[Track]:
    """The tracks of sound."""
    return [
        Track(
            number=number,
            stream=one.index,
            channels=min(2, max(1, one.channels)),
            language="" if one.language in (None, "und") else str(one.language),
        )
        for number, one in enumerate(probe.audio)
    ]


@step(version=1, publish="{name}")
def sound(
    ctx: Context,
    source: Source,
    track: Track,
    segment_seconds: SegmentLength = 4,
    audio_kbps: AudioRate = 128,
    encoder: Encoder = "",
) -> Sound:
    """Encode a track of sound, from end to end."""
    parts: list[Part] = []
    folder = f"audio/{track.number}"

    def keep(_: int, data: bytes, found: Segment | None) -> None:
        if found is None:
            ctx.out(f"{folder}/init.mp4").write_bytes(data)
        else:
            parts.append(Part.of(found, len(data)))
            ctx.out(f"{folder}/{parts[-1].name}").write_bytes(data)

    layout = "stereo" if track.channels > 1 else "mono"
    wanted = Soundtrack(track.stream, SOUND_HZ, layout, audio_kbps, segment_seconds)
    soundtrack(source.path, wanted, keep, limits=Limits.of(current()), on_progress=ctx.progress)
    return Sound(track=track, codecs="mp4a.40.2", parts=parts)


@step(version=1, publish="{name}")
def package(
    ctx: Context,
    probe: Probed,
    rungs: Rungs,
    encode: list[Encoded | None],
    sound: list[Sound],
    segment_seconds: SegmentLength = 4,
) -> Package:
    """Write the playlists over everything that was encoded."""
    pictures = [_pictures(probe, one, encode) for one in rungs.qualities]
    sounds = [_sound(one) for one in sound]
    whole = [one for one in pictures if one.is_whole]
    files: list[Path] = []

    def write(name: str, text: str) -> None:
        path = ctx.out(name)
        path.write_text(text, encoding="utf-8")
        files.append(path)

    for one in (*whole, *sounds):
        write(f"{one.name}/index.m3u8", media_playlist(one, segment_seconds))
    if whole or sounds:
        fps = _fps(probe.film) if probe.film else None
        write("master.m3u8", master_playlist(whole, sounds, fps))
        write("manifest.mpd", manifest(whole, sounds, fps, probe.duration_ms / 1000))
    return Package(
        files=files,
        complete=[one.name for one in whole],
        incomplete=[one.name for one in pictures if not one.is_whole],
    )


@step(version=1)
def verdict(package: Package, required: str = "all") -> list[str]:
    """Fail the job if a quality failed that is required; the others can be played all the same."""
    named = {name.strip() for name in required.split(",")}
    missing = [name for name in package.incomplete if "all" in named or name in named]
    if missing or not (package.complete or package.files):
        raise Permanent(
            f"{', '.join(missing) or 'everything'} could not be encoded.",
            remedy="`intermission why JOB` says what went wrong; the rest can be played.",
        )
    return package.complete


def _passages(probe: Probed, film: Film, segment_s: int, passage_s: int) -> list[Passage]:
    stamps = array("q", probe.stamps.read_bytes())
    shown, keys = stamps[: film.frames], stamps[film.frames :]
    return cut(film, shown, keys, segment_s=segment_s, passage_s=passage_s)


def _fps(film: Film) -> Fraction:
    return Fraction(film.frames * film.scale, max(1, film.end)).limit_denominator(1001)


def _pictures(probe: Probed, quality: Quality, encoded: list[Encoded | None]) -> Rendition:
    """A quality as far as its segments follow each other from the beginning."""
    assert probe.film is not None
    mine = [one for one in encoded if one is not None and one.quality == quality.name]
    if len({(one.init_sha256, one.codecs) for one in mine}) > 1:
        raise Permanent(f"the passages of {quality.name} were encoded in different ways.")
    parts = [part for one in mine for part in one.parts]
    whole = (
        bool(parts)
        and parts[-1].end == probe.film.end
        and all(before.end == after.start for before, after in pairwise(parts))
    )
    return Rendition(
        name=quality.name,
        codecs=mine[0].codecs if mine else "",
        scale=probe.film.scale,
        parts=parts,
        is_whole=whole,
        width=quality.width,
        height=quality.height,
    )


def _sound(made: Sound) -> Rendition:
    return Rendition(
        name=f"audio/{made.track.number}",
        codecs=made.codecs,
        scale=SOUND_HZ,
        parts=made.parts,
        is_whole=True,
        language=made.track.language,
        channels=made.track.channels,
        rate_hz=SOUND_HZ,
    )


def _resolve(params: dict[str, Any]) -> Mapping[str, Any]:
    """Which encoders these are: another version writes other bytes."""
    return {"encoder": params["encoder"] or versions()}


transcode = Pipeline(
    "transcode",
    [probe, rungs, pieces, encode, tracks, sound, package, verdict],
    output="videos",
    resolve=_resolve,
)
