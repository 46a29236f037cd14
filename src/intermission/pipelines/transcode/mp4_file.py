"""One rendition and its audio as a single MP4 file, for people who have no use for segments."""

from __future__ import annotations

from collections.abc import Sequence

from intermission import Context
from intermission.errors import Permanent
from intermission.media.mux import beginning, fragment, in_order
from intermission.pipelines.transcode.playlists import PlaylistTrack
from intermission.pipelines.transcode.results import AUDIO_HZ, Encoded, EncodedAudio
from intermission.pipelines.transcode.tracks import SegmentPaths, audio_track_of


def named(asked: str, whole: Sequence[PlaylistTrack]) -> list[PlaylistTrack]:
    """The renditions that were asked for. Raises `Permanent` for one that doesn't exist."""
    known = {one.name: one for one in whole}
    names = [name.strip() for name in asked.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise Permanent(
                f'no rendition "{name}".',
                remedy=f"Choose one with --mp4: {', '.join(known)}."
                if known
                else "No rendition could be encoded.",
            )
    return [known[name] for name in names]


def write_mp4(
    ctx: Context,
    track: PlaylistTrack,
    encoded: Sequence[Encoded | None],
    audio: EncodedAudio | None,
) -> None:
    """`720p.mp4`: the video of a rendition with the first audio track."""
    video = SegmentPaths(track.name, encoded)
    audio_track = None if audio is None else audio_track_of(audio)
    segments = [] if audio_track is None else audio_track.segments
    with ctx.out(f"{track.name}.mp4").open("wb") as file:
        audio_init = None
        if audio is not None and audio_track is not None:
            audio_init = audio.files[f"{audio_track.name}/init.mp4"].read_bytes()
        file.write(beginning(video["init.mp4"].read_bytes(), audio_init))
        order = in_order(
            (segment.start / track.scale for segment in track.segments),
            (segment.start / AUDIO_HZ for segment in segments),
        )
        for number, (is_audio, n) in enumerate(order, 1):
            if is_audio and audio is not None and audio_track is not None:
                path = audio.files[f"{audio_track.name}/{segments[n].name}"]
            else:
                path = video[track.segments[n].name]
            file.write(fragment(path.read_bytes(), number, is_second=is_audio))
            ctx.progress(number / len(order))
