"""One rendition and its audio as a single MP4 file, for people who have no use for segments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from intermission import Context
from intermission.errors import Permanent
from intermission.media.fmp4 import payload, sample_rows
from intermission.media.mux import MuxTrack, header, in_order
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
    """`720p.mp4`: the video of a rendition with the first audio track.

    Every segment is read twice: for the index, which comes first, and for its data.
    """
    paths = SegmentPaths(track.name, encoded)
    files = [[paths[name] for name in _names(track)]]
    starts = [[segment.start / track.scale for segment in track.segments], []]
    if audio is not None:
        heard = audio_track_of(audio)
        files.append([audio.files[f"{heard.name}/{name}"] for name in _names(heard)])
        starts[1] = [segment.start / AUDIO_HZ for segment in heard.segments]
    order = in_order(*starts)
    with ctx.out(f"{track.name}.mp4").open("wb") as file:
        file.write(header([_indexed(one) for one in files], order))
        for number, (one, n) in enumerate(order, 1):
            file.write(payload(files[one][n + 1].read_bytes()))
            ctx.progress(number / len(order))


def _names(track: PlaylistTrack) -> list[str]:
    return ["init.mp4", *(segment.name for segment in track.segments)]


def _indexed(files: Sequence[Path]) -> MuxTrack:
    init, *segments = files
    return MuxTrack(init.read_bytes(), [sample_rows(one.read_bytes()) for one in segments])
