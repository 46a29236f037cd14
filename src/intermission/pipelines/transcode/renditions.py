"""What can be played of a film, put together from the results of steps; files are not opened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from intermission.errors import Permanent
from intermission.pipelines.transcode.codecs import is_mapped
from intermission.pipelines.transcode.ladder import Quality, Rungs
from intermission.pipelines.transcode.playlists import (
    Look,
    Rendition,
    following,
    manifest,
    master_playlist,
    media_playlist,
)
from intermission.pipelines.transcode.shapes import SOUND_HZ, Encoded, Probed, Sound


def pictures_of(probe: Probed, rungs: Rungs, encoded: Sequence[Encoded | None]) -> list[Rendition]:
    """Every quality, as far as its segments follow each other from the beginning."""
    return [_pictures(probe, one, encoded) for one in rungs.qualities]


def _pictures(probe: Probed, quality: Quality, encoded: Sequence[Encoded | None]) -> Rendition:
    assert probe.film is not None
    mine = [one for one in encoded if one is not None and one.quality == quality.name]
    if len({(one.init_sha256, one.codecs) for one in mine}) > 1:
        raise Permanent(f"the passages of {quality.name} were encoded in different ways.")
    parts = following([part for one in mine for part in one.parts])
    return Rendition(
        name=quality.name,
        codecs=mine[0].codecs if mine else "",
        scale=probe.film.scale,
        parts=parts,
        is_whole=bool(parts) and parts[-1].end == probe.film.end,
        width=quality.width,
        height=quality.height,
        kbps=quality.kbps,
    )


def sound_of(made: Sound) -> Rendition:
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


class Segments(Mapping[str, Path]):
    """The files of a quality by name, each fetched when it is asked for."""

    def __init__(self, quality: str, encoded: Iterable[Encoded | None]) -> None:
        self._found = {
            name.partition("/")[2]: (one.files, name)
            for one in encoded
            if one is not None and one.quality == quality
            for name in one.files
        }

    def __getitem__(self, name: str) -> Path:
        files, key = self._found[name]
        return files[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def indexes(tracks: Sequence[Rendition], segment_s: int) -> dict[str, str]:
    """The playlist of each track."""
    return {f"{one.name}/index.m3u8": media_playlist(one, segment_s) for one in tracks}


def look_of(probe: Probed, rungs: Rungs, hdr: str) -> Look:
    """What is said of the pictures, where HDR was kept or mapped."""
    film = probe.film
    if film is None:
        return Look()
    fps = Fraction(rungs.fps) if rungs.fps else None
    return Look(fps, *film.tags(tone_map=is_mapped(film, hdr)))


def front(
    look: Look,
    pictures: Sequence[Rendition],
    sounds: Sequence[Rendition],
    folder: str = "",
    *,
    has_text: bool = False,
) -> dict[str, str]:
    """What a player is given, for tracks in a folder; HLS with the subtitles, if there are any."""
    if not pictures and not sounds:
        return {}
    return {
        "master.m3u8": master_playlist(pictures, sounds, look, folder, has_text=has_text),
        "manifest.mpd": manifest(pictures, sounds, look, folder),
    }


def preview(
    probe: Probed,
    rungs: Rungs,
    encode: list[Encoded | None],
    sound: list[Sound | None],
    segment_seconds: int,
    hdr: str,
) -> dict[str, str]:
    """Playlists over what is encoded so far, and for players once all sound is there."""
    pictures = pictures_of(probe, rungs, encode)
    begun = [one for one in pictures if one.parts]
    sounds = [sound_of(one) for one in sound if one is not None]
    texts = indexes([*begun, *sounds], segment_seconds)
    if len(sounds) == len(sound) and (begun or not pictures):
        texts["master.m3u8"] = master_playlist(begun, sounds, look_of(probe, rungs, hdr))
    return texts
