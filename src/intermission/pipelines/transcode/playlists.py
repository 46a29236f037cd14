"""Playlists of HLS and the manifest of DASH, as text. Pure: what is there goes in, text comes out.

Nothing here is measured again: sizes and times are those of the segments' receipts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby, pairwise, takewhile
from math import ceil
from xml.sax.saxutils import quoteattr

from pydantic import BaseModel

from intermission.media.film import BT709, HLG, PQ
from intermission.media.fragments import Segment

SOUND_GROUP = "sound"
TEXT_GROUP = "subtitles"
TEXT_FOLDER = "subtitles/0"
TEXT_NAME = "subtitles.vtt"
_RANGES = {PQ: "PQ", HLG: "HLG"}
_CICP = "urn:mpeg:mpegB:cicp"


def part_name(number: int) -> str:
    return f"seg_{number:05d}.m4s"


class Part(BaseModel):
    """One segment: its file, when it begins and ends in ticks, and its size."""

    name: str
    start: int
    end: int
    size_bytes: int

    @classmethod
    def of(cls, found: Segment, size_bytes: int) -> Part:
        name = part_name(found.number)
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
    kbps: int = 0
    """What it was encoded to take at most."""

    @property
    def peak_bps(self) -> int:
        """The most that a segment takes; as planned, while some are missing."""
        if self.kbps and not self.is_whole:
            return self.kbps * 1000
        return max(
            (self._bps(part.size_bytes, part.end - part.start) for part in self.parts), default=0
        )

    @property
    def mean_bps(self) -> int:
        if self.kbps and not self.is_whole:
            return self.kbps * 1000
        if not self.parts:
            return 0
        size_bytes = sum(part.size_bytes for part in self.parts)
        return self._bps(size_bytes, self.parts[-1].end - self.parts[0].start)

    @property
    def end_s(self) -> float:
        """When the last of its segments ends."""
        return self.parts[-1].end / self.scale if self.parts else 0.0

    def _bps(self, size_bytes: int, ticks: int) -> int:
        return ceil(size_bytes * 8 * self.scale / max(1, ticks))


@dataclass(frozen=True)
class Look:
    """What is true of the pictures in every quality."""

    fps: Fraction | None = None
    primaries: int = BT709
    transfer: int = BT709
    matrix: int = BT709
    """As ITU-T H.273 numbers them."""

    @property
    def hls(self) -> str:
        """Attributes of a variant; one that says nothing of its range is not HDR."""
        return (f",FRAME-RATE={float(self.fps):.3f}" if self.fps else "") + (
            f",VIDEO-RANGE={_RANGES[self.transfer]}" if self.transfer in _RANGES else ""
        )

    def dash(self) -> Iterator[str]:
        """Properties of HDR. A player that does not know them may try: there is nothing else."""
        if self.transfer in _RANGES:
            for name, value in (
                ("ColourPrimaries", self.primaries),
                ("TransferCharacteristics", self.transfer),
                ("MatrixCoefficients", self.matrix),
            ):
                yield f'<SupplementalProperty schemeIdUri="{_CICP}:{name}" value="{value}"/>'


def longest_s(tracks: Sequence[Rendition]) -> float:
    """How long there is something to see or to hear, whatever the source says of itself."""
    return max((track.end_s for track in tracks), default=0.0)


def following(parts: Sequence[Part]) -> list[Part]:
    """The segments that follow each other from the first one on."""
    if not parts or parts[0].name != part_name(0):
        return []
    together = takewhile(lambda pair: pair[0].end == pair[1].start, pairwise(parts))
    return [parts[0], *(part for _, part in together)]


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


def captions(text: str, duration_s: float) -> dict[str, str]:
    """Subtitles as players of HLS want them: one segment, as long as the film."""
    head, _, rest = text.partition("\n")
    starts = "X-TIMESTAMP-MAP=MPEGTS:0,LOCAL:00:00:00.000"
    playlist = [
        "#EXTM3U",
        "#EXT-X-VERSION:7",
        f"#EXT-X-TARGETDURATION:{max(1, ceil(duration_s))}",
        "#EXT-X-MEDIA-SEQUENCE:0",
        "#EXT-X-PLAYLIST-TYPE:VOD",
        f"#EXTINF:{duration_s:.6f},",
        TEXT_NAME,
        "#EXT-X-ENDLIST",
    ]
    return {
        f"{TEXT_FOLDER}/{TEXT_NAME}": f"{head}\n{starts}\n{rest}",
        f"{TEXT_FOLDER}/index.m3u8": "\n".join(playlist) + "\n",
    }


def master_playlist(
    pictures: Sequence[Rendition],
    sounds: Sequence[Rendition],
    look: Look,
    folder: str = "",
    *,
    has_text: bool = False,
) -> str:
    """Every quality with every track of sound; the best quality first."""
    lines = ["#EXTM3U", "#EXT-X-VERSION:7", "#EXT-X-INDEPENDENT-SEGMENTS"]
    for n, sound in enumerate(sounds):
        name = (sound.language or "sound") + (f" {n + 1}" if n else "")
        language = f",LANGUAGE={_quoted(sound.language)}" if sound.language else ""
        lines.append(
            f'#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID="{SOUND_GROUP}",NAME={_quoted(name)}{language},'
            f"DEFAULT={'NO' if n else 'YES'},AUTOSELECT=YES,"
            f'CHANNELS="{sound.channels}",URI="{folder}{sound.name}/index.m3u8"'
        )
    if has_text:
        lines.append(
            f'#EXT-X-MEDIA:TYPE=SUBTITLES,GROUP-ID="{TEXT_GROUP}",NAME="subtitles",DEFAULT=NO,'
            f'AUTOSELECT=YES,FORCED=NO,URI="{folder}{TEXT_FOLDER}/index.m3u8"'
        )
    loudest = max((sound.peak_bps for sound in sounds), default=0)
    usual = max((sound.mean_bps for sound in sounds), default=0)
    for track in pictures or sounds:
        named = [track.codecs, *dict.fromkeys(sound.codecs for sound in sounds)]
        extra = (loudest, usual) if pictures else (0, 0)
        lines.append(
            f"#EXT-X-STREAM-INF:BANDWIDTH={track.peak_bps + extra[0]},"
            f"AVERAGE-BANDWIDTH={track.mean_bps + extra[1]},"
            f"CODECS={_quoted(','.join(dict.fromkeys(named)))}"
            + (f",RESOLUTION={track.width}x{track.height}" if pictures else "")
            + (look.hls if pictures else "")
            + (f',AUDIO="{SOUND_GROUP}"' if sounds else "")
            + (f',SUBTITLES="{TEXT_GROUP}"' if has_text else "")
        )
        lines.append(f"{folder}{track.name}/index.m3u8")
    return "\n".join(lines) + "\n"


def _printable(text: str) -> str:
    """Text from a file without what could end its line."""
    return "".join(character for character in text if character.isprintable())


def _quoted(text: str) -> str:
    """Text as a quoted string of HLS, which knows no way to write a quote."""
    return f'"{_printable(text).replace(chr(34), "")}"'


def manifest(
    pictures: Sequence[Rendition],
    sounds: Sequence[Rendition],
    look: Look,
    folder: str = "",
) -> str:
    """The same segments for players of DASH."""
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        '<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" minBufferTime="PT4S" '
        'profiles="urn:mpeg:dash:profile:isoff-live:2011" '
        f'mediaPresentationDuration="PT{longest_s([*pictures, *sounds]):.6f}S">',
        "<Period>",
    ]
    if pictures:
        lines.append('<AdaptationSet contentType="video" mimeType="video/mp4" '
                     'segmentAlignment="true" startWithSAP="1">')  # fmt: skip
        lines += look.dash()
        for track in pictures:
            rate = f' frameRate="{look.fps}"' if look.fps else ""
            size = f' width="{track.width}" height="{track.height}"'
            lines += _representation(track, folder, size + rate)
        lines.append("</AdaptationSet>")
    for sound in sounds:
        language = f" lang={quoteattr(_printable(sound.language))}" if sound.language else ""
        lines.append(f'<AdaptationSet contentType="audio" mimeType="audio/mp4"{language} '
                     'segmentAlignment="true" startWithSAP="1">')  # fmt: skip
        lines += _representation(sound, folder, f' audioSamplingRate="{sound.rate_hz}"')
        lines.append("</AdaptationSet>")
    return "\n".join([*lines, "</Period>", "</MPD>"]) + "\n"


def _representation(track: Rendition, folder: str, attributes: str) -> list[str]:
    where = f"{folder}{track.name}"
    lines = [
        f"<Representation id={quoteattr(track.name)} codecs={quoteattr(track.codecs)} "
        f'bandwidth="{track.peak_bps}"{attributes}>',
        f'<SegmentTemplate timescale="{track.scale}" initialization="{where}/init.mp4" '
        f'media="{where}/seg_$Number%05d$.m4s" startNumber="0">',
        "<SegmentTimeline>",
    ]
    begins = f' t="{track.parts[0].start}"' if track.parts else ""
    for ticks, alike in groupby(part.end - part.start for part in track.parts):
        more = len(list(alike)) - 1
        lines.append(f'<S{begins} d="{ticks}"' + (f' r="{more}"/>' if more else "/>"))
        begins = ""
    return [*lines, "</SegmentTimeline>", "</SegmentTemplate>", "</Representation>"]
