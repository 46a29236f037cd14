"""`transcode`: a video in several renditions, cut into segments that any player takes.

    probe ─ renditions ─ chunks ─ encode ─┬─ package, storyboard, mp4_file ─ release
    └────── audio_tracks ──────── audio ──┘

No copy of the source is cut up: every chunk is read from the source itself, and the times of the
frames decide which are its own. One decoder feeds all renditions of a chunk, and each rendition has
its own receipt. Audio is encoded once, from end to end.

What is finished can be played while the rest is being encoded. A video that is transcoded again
with other parameters is put beside the one that is there; `release` leads players to the new one.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from math import ceil
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from intermission import Context, Groups, Pipeline, Source, step
from intermission.errors import MediaError, Permanent
from intermission.media import Limits
from intermission.media.encode_client import (
    encode_audio,
    index_frames,
    longest_segment,
    section_at,
    split,
)
from intermission.media.fmp4 import Segment
from intermission.media.request import AudioRequest
from intermission.media.video_info import VideoTrack
from intermission.pipelines.media_files import VIDEO_FILES
from intermission.pipelines.transcode import ladder as ladders
from intermission.pipelines.transcode.captions import language_of, text_of
from intermission.pipelines.transcode.codecs import BY_CODEC, settings_of, usual, versions
from intermission.pipelines.transcode.frame_rate import mean_of, rate_of
from intermission.pipelines.transcode.ladder import Ladder, Renditions
from intermission.pipelines.transcode.languages import LanguageTag
from intermission.pipelines.transcode.mp4_file import named, write_mp4
from intermission.pipelines.transcode.playlists import (
    SegmentFile,
    SubtitleTrack,
    captions,
    longest_s,
)
from intermission.pipelines.transcode.results import (
    AUDIO_HZ,
    AudioTrack,
    EncodeChunk,
    Encoded,
    EncodedAudio,
    Package,
    Probed,
)
from intermission.pipelines.transcode.shared_encode import SharedEncode
from intermission.pipelines.transcode.storyboard import make_poster, make_storyboard
from intermission.pipelines.transcode.tracks import (
    audio_track_of,
    entrypoints,
    indexes,
    preview,
    video_format_of,
    video_tracks_of,
)
from intermission.settings import current

SegmentLength = Annotated[int, Field(ge=1, le=30, description="length of a segment, in seconds")]
ChunkLength = Annotated[int, Field(ge=1, le=3600, description="longest chunk, in seconds")]
Codec = Annotated[
    Literal["h264", "hevc", "av1"],
    BeforeValidator(lambda name: {"h265": "hevc", "avc": "h264"}.get(name, name)),
    Field(description="video codec; h265 is hevc"),
]
Preset = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9]*$",
        description="the encoder's preset; veryfast by default, 10 for av1",
    ),
]
Crf = Annotated[
    int,
    Field(
        ge=-1,
        le=63,
        description="constant rate factor, lower is better; by default 23, hevc 26, av1 35",
    ),
]
Hdr = Annotated[
    Literal["auto", "tone-map", "keep"],
    Field(description="HDR: tone-map (the default for h264) or keep (for hevc and av1)"),
]
Hardware = Annotated[
    Literal["none", "nvenc"], Field(description="hardware encoder: nvenc (NVIDIA) or none")
]
Surround = Annotated[
    bool, Field(description="keep audio with more than two channels, beside stereo")
]
Threads = Annotated[int, Field(ge=1, le=64, description="threads of one encoder")]
Encoder = Annotated[str, Field(description="encoder and version; detected by default")]
AudioRate = Annotated[int, Field(ge=24, le=512, description="kbit/s of a stereo track")]
Subtitles = Annotated[
    str, Field(description="a WebVTT file; auto: the transcript beside the source, if any")
]
Mp4Files = Annotated[
    str, Field(description="renditions to write as one MP4 file each as well, such as 720p")
]
Required = Annotated[
    str, Field(description="renditions the job can't succeed without: 720p,360p, all or none")
]

VERSION = "{version}"
"""In an entrypoint, stands for the folder of the job's outputs."""
_SURROUND = 6
_LAYOUTS = {1: "mono", 2: "stereo", _SURROUND: "5.1"}


@step(version=1)
def probe(ctx: Context, source: Source) -> Probed:
    """Find out what the source holds, and when each of its frames is shown."""
    path = ctx.out("stamps")
    found = index_frames(source.path, limits=Limits.of(current()))
    path.write_bytes(found.shown.tobytes() + found.keys.tobytes())
    return Probed(
        video=found.video,
        audio=list(found.info.audio),
        duration_ms=found.info.duration_ms,
        stamps=path,
        keys=len(found.keys),
    )


@step(version=3)
def renditions(
    ctx: Context,
    probe: Probed,
    ladder: Ladder = ladders.DEFAULT,
    segment_seconds: SegmentLength = 4,
) -> Renditions:
    """Decide which renditions the video gets, and find out what they have in common."""
    if probe.video is None:
        return Renditions(chosen=[], skipped=[])
    chosen = ladders.choose(probe.video, ladder)
    for one in chosen.skipped:
        ctx.log.info("%s is skipped: %s", one.name, one.reason)
    shown, _ = _stamps(probe, probe.video)
    chosen.fps = str(rate_of(shown, probe.video.end, probe.video.scale))
    chosen.mean_fps = str(mean_of(shown, probe.video.end, probe.video.scale))
    chosen.longest_segment = longest_segment(probe.video, shown, segment_seconds)
    return chosen


@step(version=1)
def chunks(
    probe: Probed,
    renditions: Renditions,
    segment_seconds: SegmentLength = 4,
    chunk_seconds: ChunkLength = 60,
) -> list[EncodeChunk]:
    """Split the video into chunks, each in every rendition."""
    if probe.video is None:
        return []
    shown, keys = _stamps(probe, probe.video)
    sections = split(probe.video, shown, keys, segment_s=segment_seconds, section_s=chunk_seconds)
    return [
        EncodeChunk(
            first=section.first_segment,
            segments=len(section.cuts),
            rendition=one.name,
            width=one.width,
            height=one.height,
            kbps=one.kbps,
        )
        for section in sections
        for one in renditions.chosen
    ]


@step(
    version=3,
    attempts=4,
    on_error="skip",
    batch_by=("first", "segments"),
    groups=Groups(by="rendition", size="segments", skipped="renditions"),
    publish="{version}{name}",
)
def encode(
    ctx: Context,
    source: Source,
    probe: Probed,
    chunk: EncodeChunk,
    segment_seconds: SegmentLength = 4,
    codec: Codec = "h264",
    preset: Preset = "",
    crf: Crf = BY_CODEC,
    hdr: Hdr = "auto",
    hardware: Hardware = "none",
    threads: Threads = 1,
    encoder: Encoder = "",
) -> Encoded:
    """Encode a chunk; with it, in one go, the other renditions this slot was given."""
    assert probe.video is not None
    settings = settings_of(probe.video, codec, preset, crf, threads, hdr, hardware)
    shown, keys = _stamps(probe, probe.video)
    section = section_at(
        probe.video,
        shown,
        keys,
        segment_s=segment_seconds,
        first=chunk.first,
        segments=chunk.segments,
    )
    batch = [chunk, *(one for one in ctx.batch if isinstance(one, EncodeChunk) and one != chunk)]
    _shared.provide(ctx, source, probe.video, section, settings, batch)
    return _shared.take(chunk, ctx)


_shared = SharedEncode()


@step(version=1)
def audio_tracks(probe: Probed, surround: Surround = False) -> list[AudioTrack]:
    """List the audio tracks: each in stereo or mono, then those in surround, if asked for."""
    wanted = [(one, min(2, max(1, one.channels))) for one in probe.audio]
    if surround:
        wanted += [(one, _SURROUND) for one in probe.audio if one.channels >= _SURROUND]
    return [
        AudioTrack(
            number=number,
            stream=one.index,
            channels=channels,
            language="" if one.language in (None, "und") else str(one.language),
        )
        for number, (one, channels) in enumerate(wanted)
    ]


@step(version=2, publish="{version}{name}")
def audio(
    ctx: Context,
    source: Source,
    probe: Probed,
    track: AudioTrack,
    segment_seconds: SegmentLength = 4,
    audio_kbps: AudioRate = 128,
    encoder: Encoder = "",
) -> EncodedAudio:
    """Encode an audio track from end to end, and silence if the video lasts longer."""
    segments: list[SegmentFile] = []
    folder = f"audio/{track.number}"

    def keep(_: int, data: bytes, found: Segment | None) -> None:
        if found is None:
            ctx.out(f"{folder}/init.mp4").write_bytes(data)
        else:
            segments.append(SegmentFile.of(found, len(data)))
            ctx.out(f"{folder}/{segments[-1].name}").write_bytes(data)

    kbps = max(1, track.channels // 2) * audio_kbps
    wanted = AudioRequest(
        track.stream,
        AUDIO_HZ,
        _LAYOUTS[track.channels],
        kbps,
        segment_seconds,
        samples_min=ceil(probe.video.end * AUDIO_HZ / probe.video.scale) if probe.video else 0,
    )
    encode_audio(source.path, wanted, keep, limits=Limits.of(current()), on_progress=ctx.progress)
    return EncodedAudio(track=track, codecs="mp4a.40.2", segments=segments)


@step(version=3, publish="{version}{name}")
def package(
    ctx: Context,
    probe: Probed,
    renditions: Renditions,
    encode: list[Encoded | None],
    audio: list[EncodedAudio],
    segment_seconds: SegmentLength = 4,
    subtitles: Subtitles = "",
    subtitle_language: LanguageTag = "",
    hdr: Hdr = "auto",
) -> Package:
    """Write the playlists over everything that was encoded."""
    video_tracks = video_tracks_of(probe, renditions, encode)
    whole = [one for one in video_tracks if one.is_whole]
    audio_tracks = [audio_track_of(one) for one in audio]
    texts = indexes([*whole, *audio_tracks], segment_seconds)
    if subtitles:
        texts |= captions(subtitles, longest_s([*whole, *audio_tracks]))
    shown = SubtitleTrack(subtitle_language) if subtitles else None
    video_format = video_format_of(probe, renditions, hdr)
    texts |= entrypoints(video_format, whole, audio_tracks, subtitles=shown)
    for name, text in texts.items():
        ctx.out(name).write_text(text, encoding="utf-8")
    return Package(
        entrypoints=entrypoints(video_format, whole, audio_tracks, VERSION, subtitles=shown),
        complete=[one.name for one in whole],
        incomplete=[one.name for one in video_tracks if not one.is_whole],
    )


@step(version=1, publish="{version}{name}")
def storyboard(
    ctx: Context, probe: Probed, renditions: Renditions, encode: list[Encoded | None]
) -> bool:
    """Make thumbnails from the smallest rendition, and a poster from the largest."""
    whole = [one for one in video_tracks_of(probe, renditions, encode) if one.is_whole]
    try:
        if whole:
            make_poster(ctx, whole[0], encode)
            make_storyboard(ctx, whole[-1], encode)
    except MediaError as e:  # the video plays without
        ctx.log.warning("there is no storyboard: %s", e)
        return False
    return bool(whole)


@step(version=2, publish="{version}{name}")
def mp4_file(
    ctx: Context,
    probe: Probed,
    renditions: Renditions,
    encode: list[Encoded | None],
    audio: list[EncodedAudio],
    mp4: Mp4Files = "",
) -> list[str]:
    """Write each rendition that was asked for, with audio, as one file."""
    whole = [one for one in video_tracks_of(probe, renditions, encode) if one.is_whole]
    made = named(mp4, whole)
    for one in made:
        write_mp4(ctx, one, encode, audio[0] if audio else None)
    return [one.name for one in made]


@step(version=1, entrypoints=True)
def release(
    ctx: Context,
    package: Package,
    storyboard: bool,
    mp4_file: list[str],
    required: Required = "all",
) -> list[str]:
    """Lead players to what was made, unless a required rendition failed."""
    named = {name.strip() for name in required.split(",")}
    missing = [name for name in package.incomplete if "all" in named or name in named]
    if missing or not package.entrypoints:
        raise Permanent(
            f"{', '.join(missing) or 'everything'} could not be encoded.",
            remedy="`intermission status JOB` shows how far each rendition came. Players still "
            "get the previous version; --required names the renditions that must not be missing.",
        )
    for name, text in package.entrypoints.items():
        ctx.out(name).write_text(text, encoding="utf-8")
    return package.complete


def _stamps(probe: Probed, video: VideoTrack) -> tuple[array[int], array[int]]:
    """When frames are shown, and which of them are key frames."""
    stamps = array("q", probe.stamps.read_bytes())
    return stamps[: video.frames], stamps[video.frames :]


def _resolve(params: dict[str, Any], source: Source | None) -> Mapping[str, Any]:
    """Settle what decides about the bytes: the encoder's version, its defaults, the subtitles."""
    asked = (params[name] for name in ("codec", "preset", "crf", "hdr", "hardware"))
    preset, crf, hdr = usual(*asked)
    encoder = params["encoder"] or versions()
    subtitles = text_of(params["subtitles"], source)
    language = language_of(params["subtitles"], subtitles, source)
    return {
        "encoder": encoder,
        "preset": preset,
        "crf": crf,
        "hdr": hdr,
        "subtitles": subtitles,
        "subtitle_language": params["subtitle_language"] or language,
    }


transcode = Pipeline(
    "transcode",
    [
        probe,
        audio_tracks,
        audio,
        renditions,
        chunks,
        encode,
        package,
        storyboard,
        mp4_file,
        release,
    ],
    accepts=VIDEO_FILES,
    output="videos",
    resolve=_resolve,
    preview=preview,
)
