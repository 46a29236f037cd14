"""`transcode`: a film in several qualities, cut into segments that any player takes.

    probe ─ rungs ─ pieces ─ encode ─┬─ package, storyboard, single ─ release
    └────── tracks ───────── sound ──┘

No copy of the source is cut up: every passage is read from the source itself, and decides by the
times of the pictures which are its own. One decoder feeds all qualities of a passage, and each
quality has its own receipt. Sound is encoded once, from end to end.

What is there can be played while the rest is being encoded. A film that is transcoded again, in
other ways, is put beside the one that is there; `release` has players go to the new one.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from intermission import Context, Groups, Pipeline, Source, step
from intermission.errors import MediaError, Permanent
from intermission.media import Limits
from intermission.media.film import Film
from intermission.media.fragments import Segment
from intermission.media.order import Soundtrack
from intermission.media.producing import cut, passage_of, soundtrack, survey
from intermission.pipelines.transcode import ladder as ladders
from intermission.pipelines.transcode.bench import Bench
from intermission.pipelines.transcode.captions import text_of
from intermission.pipelines.transcode.codecs import BY_CODEC, coding_of, usual, versions
from intermission.pipelines.transcode.ladder import Ladder, Rungs
from intermission.pipelines.transcode.playlists import Part, captions, longest_s
from intermission.pipelines.transcode.rate import rate_of
from intermission.pipelines.transcode.renditions import (
    front,
    indexes,
    look_of,
    pictures_of,
    preview,
    sound_of,
)
from intermission.pipelines.transcode.shapes import (
    SOUND_HZ,
    Encoded,
    Package,
    Piece,
    Probed,
    Sound,
    Track,
)
from intermission.pipelines.transcode.single import named, write_single
from intermission.pipelines.transcode.storyboard import make_poster, make_storyboard
from intermission.settings import current

SegmentLength = Annotated[int, Field(ge=1, le=30, description="length of a segment, in seconds")]
ChunkLength = Annotated[int, Field(ge=1, le=3600, description="the longest passage, in seconds")]
Codec = Annotated[Literal["h264", "hevc", "av1"], Field(description="h264, hevc or av1")]
Preset = Annotated[
    str,
    Field(pattern=r"^[a-z0-9]*$", description="the encoder's preset; veryfast, or 10 for av1"),
]
Crf = Annotated[
    int,
    Field(ge=-1, le=63, description="constant quality, lower is better; 23, for hevc 26, av1 35"),
]
Hdr = Annotated[
    Literal["auto", "tone-map", "keep"],
    Field(description="HDR: tone-map (the default of h264), or keep (of hevc and av1)"),
]
Hardware = Annotated[
    Literal["none", "nvenc"], Field(description="a hardware encoder: nvenc (NVIDIA), or none")
]
Surround = Annotated[
    bool, Field(description="offer sound with more than two channels as it is, beside stereo")
]
Threads = Annotated[int, Field(ge=1, le=64, description="threads of one encoder")]
Encoder = Annotated[str, Field(description="the encoder and its version; found by itself")]
AudioRate = Annotated[int, Field(ge=24, le=512, description="kbit/s of a stereo track")]
Subtitles = Annotated[
    str, Field(description="a WebVTT file; auto: of the transcript beside the source, if any")
]
SingleFile = Annotated[
    str, Field(description="qualities to have in one MP4 file each as well, as 720p")
]
Required = Annotated[
    str, Field(description="qualities without which the job fails, as 720p,360p; all, or none")
]

VERSION = "{version}"
"""Stands for the folder of a job's outputs in what leads to them."""
_SURROUND = 6
_LAYOUTS = {1: "mono", 2: "stereo", _SURROUND: "5.1"}


@step(version=1)
def probe(ctx: Context, source: Source) -> Probed:
    """Find out what the source is, and when each of its pictures is shown."""
    path = ctx.out("stamps")
    found = survey(source.path, limits=Limits.of(current()))
    path.write_bytes(found.shown.tobytes() + found.keys.tobytes())
    return Probed(
        film=found.film,
        audio=list(found.info.audio),
        duration_ms=found.info.duration_ms,
        stamps=path,
        keys=len(found.keys),
    )


@step(version=2)
def rungs(ctx: Context, probe: Probed, ladder: Ladder = ladders.DEFAULT) -> Rungs:
    """Decide which qualities the film is offered in."""
    if probe.film is None:
        return Rungs(qualities=[], skipped=[])
    chosen = ladders.choose(probe.film, ladder)
    for one in chosen.skipped:
        ctx.log.info("%s is skipped: %s", one.name, one.reason)
    fps = rate_of(_stamps(probe, probe.film)[0], probe.film.end, probe.film.scale)
    return chosen.model_copy(update={"fps": str(fps)})


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
    shown, keys = _stamps(probe, probe.film)
    passages = cut(probe.film, shown, keys, segment_s=segment_seconds, passage_s=chunk_seconds)
    return [
        Piece(
            first=passage.first_segment,
            segments=len(passage.cuts),
            quality=one.name,
            width=one.width,
            height=one.height,
            kbps=one.kbps,
        )
        for passage in passages
        for one in rungs.qualities
    ]


@step(
    version=2,
    attempts=4,
    on_error="skip",
    batch_by=("first", "segments"),
    groups=Groups(by="quality", size="segments", skipped="rungs"),
    publish="{version}{name}",
)
def encode(
    ctx: Context,
    source: Source,
    probe: Probed,
    piece: Piece,
    segment_seconds: SegmentLength = 4,
    codec: Codec = "h264",
    preset: Preset = "",
    crf: Crf = BY_CODEC,
    hdr: Hdr = "auto",
    hardware: Hardware = "none",
    threads: Threads = 1,
    encoder: Encoder = "",
) -> Encoded:
    """Encode a passage; with it, in the same go, the other qualities this slot was given."""
    assert probe.film is not None
    coding = coding_of(probe.film, codec, preset, crf, threads, hdr, hardware)
    shown, keys = _stamps(probe, probe.film)
    passage = passage_of(
        probe.film,
        shown,
        keys,
        segment_s=segment_seconds,
        first=piece.first,
        segments=piece.segments,
    )
    pieces = [piece, *(one for one in ctx.batch if isinstance(one, Piece) and one != piece)]
    _bench.provide(ctx, source, probe.film, passage, coding, pieces)
    return _bench.take(piece, ctx)


_bench = Bench()


@step(version=1)
def tracks(probe: Probed, surround: Surround = False) -> list[Track]:
    """The tracks of sound: each in stereo or mono, then those that surround, if asked for."""
    wanted = [(one, min(2, max(1, one.channels))) for one in probe.audio]
    if surround:
        wanted += [(one, _SURROUND) for one in probe.audio if one.channels >= _SURROUND]
    return [
        Track(
            number=number,
            stream=one.index,
            channels=channels,
            language="" if one.language in (None, "und") else str(one.language),
        )
        for number, (one, channels) in enumerate(wanted)
    ]


@step(version=1, publish="{version}{name}")
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

    kbps = max(1, track.channels // 2) * audio_kbps
    wanted = Soundtrack(track.stream, SOUND_HZ, _LAYOUTS[track.channels], kbps, segment_seconds)
    soundtrack(source.path, wanted, keep, limits=Limits.of(current()), on_progress=ctx.progress)
    return Sound(track=track, codecs="mp4a.40.2", parts=parts)


@step(version=2, publish="{version}{name}")
def package(
    ctx: Context,
    probe: Probed,
    rungs: Rungs,
    encode: list[Encoded | None],
    sound: list[Sound],
    segment_seconds: SegmentLength = 4,
    subtitles: Subtitles = "",
    hdr: Hdr = "auto",
) -> Package:
    """Write the playlists over everything that was encoded."""
    pictures = pictures_of(probe, rungs, encode)
    whole = [one for one in pictures if one.is_whole]
    sounds = [sound_of(one) for one in sound]
    texts = indexes([*whole, *sounds], segment_seconds)
    if subtitles:
        texts |= captions(subtitles, longest_s([*whole, *sounds]))
    look, has_text = look_of(probe, rungs, hdr), bool(subtitles)
    texts |= front(look, whole, sounds, has_text=has_text)
    for name, text in texts.items():
        ctx.out(name).write_text(text, encoding="utf-8")
    return Package(
        front=front(look, whole, sounds, VERSION, has_text=has_text),
        complete=[one.name for one in whole],
        incomplete=[one.name for one in pictures if not one.is_whole],
    )


@step(version=1, publish="{version}{name}")
def storyboard(ctx: Context, probe: Probed, rungs: Rungs, encode: list[Encoded | None]) -> bool:
    """Pictures to find a moment by, from the smallest quality, and a poster, from the largest."""
    whole = [one for one in pictures_of(probe, rungs, encode) if one.is_whole]
    try:
        if whole:
            make_poster(ctx, whole[0], encode)
            make_storyboard(ctx, whole[-1], encode)
    except MediaError as e:  # the film can be played without
        ctx.log.warning("there is no storyboard: %s", e)
        return False
    return bool(whole)


@step(version=1, publish="{version}{name}")
def single(
    ctx: Context,
    probe: Probed,
    rungs: Rungs,
    encode: list[Encoded | None],
    sound: list[Sound],
    mp4: SingleFile = "",
) -> list[str]:
    """Join qualities and their sound into one file each, if somebody wants that."""
    whole = [one for one in pictures_of(probe, rungs, encode) if one.is_whole]
    made = named(mp4, whole)
    for one in made:
        write_single(ctx, one, encode, sound[0] if sound else None)
    return [one.name for one in made]


@step(version=1, entrypoints=True)
def release(
    ctx: Context,
    package: Package,
    storyboard: bool,
    single: list[str],
    required: Required = "all",
) -> list[str]:
    """Lead players to what was made, unless a quality failed that is required."""
    named = {name.strip() for name in required.split(",")}
    missing = [name for name in package.incomplete if "all" in named or name in named]
    if missing or not package.front:
        raise Permanent(
            f"{', '.join(missing) or 'everything'} could not be encoded.",
            remedy="`intermission status JOB` says how far each quality came. What was there "
            "before is still played; --required says which qualities may not be missing.",
        )
    for name, text in package.front.items():
        ctx.out(name).write_text(text, encoding="utf-8")
    return package.complete


def _stamps(probe: Probed, film: Film) -> tuple[array[int], array[int]]:
    """When pictures are shown, and which of them are key frames."""
    stamps = array("q", probe.stamps.read_bytes())
    return stamps[: film.frames], stamps[film.frames :]


def _resolve(params: dict[str, Any], source: Source | None) -> Mapping[str, Any]:
    """Which encoders these are: another version writes other bytes. And what subtitles say."""
    named = (params[name] for name in ("codec", "preset", "crf", "hdr", "hardware"))
    preset, crf, hdr = usual(*named)
    encoder = params["encoder"] or versions()
    subtitles = text_of(params["subtitles"], source)
    return {
        "encoder": encoder,
        "preset": preset,
        "crf": crf,
        "hdr": hdr,
        "subtitles": subtitles,
    }


transcode = Pipeline(
    "transcode",
    [probe, tracks, sound, rungs, pieces, encode, package, storyboard, single, release],
    output="videos",
    resolve=_resolve,
    preview=preview,
)
