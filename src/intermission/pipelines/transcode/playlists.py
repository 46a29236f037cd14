"""Playlists of HLS and the manifest of DASH, as text. Pure: what is there goes in, text comes out.

Nothing here is measured again: sizes and times are those of the segments' receipts.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from xml.sax.saxutils import quoteattr

from pydantic import BaseModel

from intermission.media.fragments import Segment

SOUND_GROUP = "sound"


class Part(BaseModel):
    """One segment: its file, when it begins and ends in ticks, and its size."""

    name: str
    start: int
    end: int
    size_bytes: int

    @classmethod
    def of(cls, found: Segment, size_bytes: int) -> Part:
        name = f"seg_{found.number:05d}.m4s"
        return cls(name=name, start=found.start, end=found.end, size_bytes=size_bytes)


class Rendition(BaseModel):
    """A track of pictures or of sound that can be played, as far as it is there."""

    name: str
    """Its folder: 720p, or audio/0."""
    codecs: str
    scale: int
    parts: list[Part]
    is_whole: bool
    width: int = 0
    height: int = 0
    language: str = ""
    channels: int = 0
    rate_hz: int = 0

    @property
    def peak_bps(self) -> int:
        """The most that a segment takes."""
        return max(
            (self._bps(part.size_bytes, part.end - part.start) for part in self.parts), default=0
        )

    @property
    def mean_bps(self) -> int:
        if not self.parts:
            return 0
        size_bytes = sum(part.size_bytes for part in self.parts)
        return self._bps(size_bytes, self.parts[-1].end - self.parts[0].start)

    def _bps(self, size_bytes: int, ticks: int) -> int:
        return ceil(size_bytes * 8 * self.scale / max(1, ticks))


def media_playlist(track: Rendition, segment_s: int) -> str:
    """The segments of one track; as an event that goes on while some are missing."""
    longest = max((part.end - part.start for part in track.parts), default=0)
    lines = [
        "#EXTM3U",
        "#EXT-X-VERSION:7",
        f"#EXT-X-TARGETDURATION:{max(segment_s, round(longest / track.scale))}",
        "#EXT-X-MEDIA-SEQUENCE:0",
        f"#EXT-X-PLAYLIST-TYPE:{'VOD' if track.is_whole else 'EVENT'}",
        "#EXT-X-INDEPENDENT-SEGMENTS",
        '#EXT-X-MAP:URI="init.mp4"',
    ]
    for part in track.parts:
        lines.append(f"#EXTINF:{(part.end - part.start) / track.scale:.6f},")
        lines.append(part.name)
    if track.is_whole:
        lines.append("#EXT-X-ENDLIST")
    return "\n".join(lines) + "\n"


def master_playlist(
    pictures: Sequence[Rendition], sounds: Sequence[Rendition], fps: Fraction | None
) -> str:
    """Every quality with every track of sound; the best quality first."""
    lines = ["#EXTM3U", "#EXT-X-VERSION:7", "#EXT-X-INDEPENDENT-SEGMENTS"]
    for n, sound in enumerate(sounds):
        language = f',LANGUAGE="{sound.language}"' if sound.language else ""
        lines.append(
            f'#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID="{SOUND_GROUP}",NAME="{sound.language or "sound"}'
            f'{f" {n + 1}" if n else ""}"{language},DEFAULT={"NO" if n else "YES"},AUTOSELECT=YES,'
            f'CHANNELS="{sound.channels}",URI="{sound.name}/index.m3u8"'
        )
    loudest = max((sound.peak_bps for sound in sounds), default=0)
    usual = max((sound.mean_bps for sound in sounds), default=0)
    for track in pictures or sounds:
        named = [track.codecs, *dict.fromkeys(sound.codecs for sound in sounds)]
        extra = (loudest, usual) if pictures else (0, 0)
        lines.append(
            f"#EXT-X-STREAM-INF:BANDWIDTH={track.peak_bps + extra[0]},"
            f"AVERAGE-BANDWIDTH={track.mean_bps + extra[1]},"
            f'CODECS="{",".join(dict.fromkeys(named))}"'
            + (f",RESOLUTION={track.width}x{track.height}" if pictures else "")
            + (f",FRAME-RATE={float(fps):.3f}" if fps and pictures else "")
            + (f',AUDIO="{SOUND_GROUP}"' if sounds else "")
        )
        lines.append(f"{track.name}/index.m3u8")
    return "\n".join(lines) + "\n"


def manifest(
    pictures: Sequence[Rendition],
    sounds: Sequence[Rendition],
    fps: Fraction | None,
    duration_s: float,
) -> str:
    """The same segments for players of DASH."""
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        '<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" minBufferTime="PT4S" '
        'profiles="urn:mpeg:dash:profile:isoff-live:2011" '
        f'mediaPresentationDuration="PT{duration_s:.3f}S">',
        "<Period>",
    ]
    if pictures:
        lines.append('<AdaptationSet contentType="video" mimeType="video/mp4" '
                     'segmentAlignment="true" startWithSAP="1">')  # fmt: skip
        for track in pictures:
            rate = f' frameRate="{fps.numerator}/{fps.denominator}"' if fps else ""
            size = f' width="{track.width}" height="{track.height}"'
            lines += _representation(track, size + rate)
        lines.append("</AdaptationSet>")
    for sound in sounds:
        language = f" lang={quoteattr(sound.language)}" if sound.language else ""
        lines.append(f'<AdaptationSet contentType="audio" mimeType="audio/mp4"{language} '
                     'segmentAlignment="true" startWithSAP="1">')  # fmt: skip
        lines += _representation(sound, f' audioSamplingRate="{sound.rate_hz}"')
        lines.append("</AdaptationSet>")
    return "\n".join([*lines, "</Period>", "</MPD>"]) + "\n"


def _representation(track: Rendition, attributes: str) -> list[str]:
    lines = [
        f"<Representation id={quoteattr(track.name)} codecs={quoteattr(track.codecs)} "
        f'bandwidth="{track.peak_bps}"{attributes}>',
        f'<SegmentTemplate timescale="{track.scale}" initialization="{track.name}/init.mp4" '
        f'media="{track.name}/seg_$Number%05d$.m4s" startNumber="0">',
        "<SegmentTimeline>",
    ]
    for n, part in enumerate(track.parts):
        begins = f' t="{part.start}"' if n == 0 else ""
        lines.append(f'<S{begins} d="{part.end - part.start}"/>')
    return [*lines, "</SegmentTimeline>", "</SegmentTemplate>", "</Representation>"]
