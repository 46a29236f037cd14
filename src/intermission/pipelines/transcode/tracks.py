"""Playable tracks, put together from the results of steps; no file is opened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from intermission.errors import Permanent
from intermission.pipelines.transcode.codecs import is_mapped
from intermission.pipelines.transcode.ladder import Rendition, Renditions
from intermission.pipelines.transcode.playlists import (
    PlaylistTrack,
    SubtitleTrack,
    VideoFormat,
    following,
    manifest,
    master_playlist,
    media_playlist,
)
from intermission.pipelines.transcode.results import AUDIO_HZ, Encoded, EncodedAudio, Probed


def video_tracks_of(
    probe: Probed, renditions: Renditions, encoded: Sequence[Encoded | None]
) -> list[PlaylistTrack]:
    """Every rendition, as far as its segments follow each other from the beginning."""
    return [_video_track(probe, renditions, one, encoded) for one in renditions.chosen]


def _video_track(
    probe: Probed,
    renditions: Renditions,
    rendition: Rendition,
    encoded: Sequence[Encoded | None],
) -> PlaylistTrack:
    assert probe.video is not None
    mine = [one for one in encoded if one is not None and one.rendition == rendition.name]
    if len({(one.init_sha256, one.codecs) for one in mine}) > 1:
        raise Permanent(f"the chunks of {rendition.name} were encoded with different settings.")
    segments = following([segment for one in mine for segment in one.segments])
    return PlaylistTrack(
        name=rendition.name,
        codecs=mine[0].codecs if mine else "",
        scale=probe.video.scale,
        segments=segments,
        is_whole=bool(segments) and segments[-1].end == probe.video.end,
        width=rendition.width,
        height=rendition.height,
        kbps=rendition.kbps,
        longest=renditions.longest_segment,
    )


def audio_track_of(made: EncodedAudio) -> PlaylistTrack:
    return PlaylistTrack(
        name=f"audio/{made.track.number}",
        codecs=made.codecs,
        scale=AUDIO_HZ,
        segments=made.segments,
        is_whole=True,
        language=made.track.language,
        channels=made.track.channels,
        rate_hz=AUDIO_HZ,
    )


class SegmentPaths(Mapping[str, Path]):
    """The files of a rendition by name, each fetched when it is asked for."""

    def __init__(self, rendition: str, encoded: Iterable[Encoded | None]) -> None:
        self._found = {
            name.partition("/")[2]: (one.files, name)
            for one in encoded
            if one is not None and one.rendition == rendition
            for name in one.files
        }

    def __getitem__(self, name: str) -> Path:
        files, key = self._found[name]
        return files[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def indexes(tracks: Sequence[PlaylistTrack], segment_s: int) -> dict[str, str]:
    """The playlist of each track."""
    return {f"{one.name}/index.m3u8": media_playlist(one, segment_s) for one in tracks}


def video_format_of(probe: Probed, renditions: Renditions, hdr: str) -> VideoFormat:
    """What playlists say about the video: its frame rate, and its colours as they were encoded."""
    video = probe.video
    if video is None:
        return VideoFormat()
    tags = video.tags(tone_map=is_mapped(video, hdr))
    fps, mean_fps = Fraction(renditions.fps), Fraction(renditions.mean_fps)
    return VideoFormat(fps, *tags, mean_fps=mean_fps)


def entrypoints(
    video_format: VideoFormat,
    video: Sequence[PlaylistTrack],
    audio: Sequence[PlaylistTrack],
    folder: str = "",
    *,
    subtitles: SubtitleTrack | None = None,
) -> dict[str, str]:
    """The files a player opens first, for tracks in a folder; HLS with any subtitles."""
    if not video and not audio:
        return {}
    return {
        "master.m3u8": master_playlist(video, audio, video_format, folder, subtitles=subtitles),
        "manifest.mpd": manifest(video, audio, video_format, folder),
    }


def preview(
    probe: Probed,
    renditions: Renditions,
    encode: list[Encoded | None],
    audio: list[EncodedAudio | None],
    segment_seconds: int,
    hdr: str,
) -> dict[str, str]:
    """Playlists over what is encoded so far; the one for players once all audio is there."""
    video_tracks = video_tracks_of(probe, renditions, encode)
    begun = [one for one in video_tracks if one.segments]
    audio_tracks = [audio_track_of(one) for one in audio if one is not None]
    texts = indexes([*begun, *audio_tracks], segment_seconds)
    if len(audio_tracks) == len(audio) and (begun or not video_tracks):
        video_format = video_format_of(probe, renditions, hdr)
        texts["master.m3u8"] = master_playlist(begun, audio_tracks, video_format)
    return texts
