"""HLS playlists and the DASH manifest, as text. Pure: tracks go in, text comes out.

Nothing is measured here: sizes and times are those of the segments' receipts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from itertools import groupby, pairwise, takewhile
from math import ceil
from xml.sax.saxutils import quoteattr

from pydantic import BaseModel

from intermission.media.fmp4 import Segment
from intermission.media.video_info import BT709, HLG, PQ
from intermission.pipelines.transcode.languages import tag_of

AUDIO_GROUP = "audio"
TEXT_GROUP = "subtitles"
TEXT_FOLDER = "subtitles/0"
TEXT_NAME = "subtitles.vtt"
_RANGES = {PQ: "PQ", HLG: "HLG"}
_CICP = "urn:mpeg:mpegB:cicp"
_CHANNELS = "urn:mpeg:dash:23003:3:audio_channel_configuration:2011"
"""Its values are those of ISO/IEC 23003-3, which for mono, stereo and 5.1 count the channels."""


def segment_name(number: int) -> str:
    return f"seg_{number:05d}.m4s"


class SegmentFile(BaseModel):
    """One segment: its file, when it begins and ends in ticks, and its size."""

    name: str
    start: int
    end: int
    size_bytes: int

    @classmethod
    def of(cls, found: Segment, size_bytes: int) -> SegmentFile:
        name = segment_name(found.number)
        return cls(name=name, start=found.start, end=found.end, size_bytes=size_bytes)


class PlaylistTrack(BaseModel):
    """A rendition of the video or an audio track, as far as it is encoded."""

    name: str
    """Its folder: 720p, or audio/0."""
    codecs: str
    scale: int
    segments: list[SegmentFile]
    is_whole: bool
    width: int = 0
    height: int = 0
    language: str = ""
    channels: int = 0
    rate_hz: int = 0
    kbps: int = 0
    """The highest bit rate that its encoder was given."""
    longest: int = 0
    """Ticks of the longest segment, those that are still missing included."""

    @property
    def peak_bps(self) -> int:
        """The bit rate of the largest segment; the planned one while segments are missing."""
        if self.kbps and not self.is_whole:
            return self.kbps * 1000
        rates = (self._bps(one.size_bytes, one.end - one.start) for one in self.segments)
        return max(rates, default=0)

    @property
    def mean_bps(self) -> int:
        if self.kbps and not self.is_whole:
            return self.kbps * 1000
        if not self.segments:
            return 0
        size_bytes = sum(segment.size_bytes for segment in self.segments)
        return self._bps(size_bytes, self.segments[-1].end - self.segments[0].start)

    @property
    def end_s(self) -> float:
        """When the last of its segments ends."""
        return self.segments[-1].end / self.scale if self.segments else 0.0

    def _bps(self, size_bytes: int, ticks: int) -> int:
        return ceil(size_bytes * 8 * self.scale / max(1, ticks))


@dataclass(frozen=True)
class VideoFormat:
    """What all renditions of a video have in common."""

    fps: Fraction | None = None
    """The highest frame rate."""
    primaries: int = BT709
    transfer: int = BT709
    matrix: int = BT709
    """As ITU-T H.273 numbers them."""
    mean_fps: Fraction | None = None
    """The average frame rate, if it is another."""

    @property
    def hls(self) -> str:
        """Attributes of a variant. One without VIDEO-RANGE is not HDR."""
        return (f",FRAME-RATE={float(self.fps):.3f}" if self.fps else "") + (
            f",VIDEO-RANGE={_RANGES[self.transfer]}" if self.transfer in _RANGES else ""
        )

    def dash(self) -> Iterator[str]:
        """Properties of HDR, as supplemental ones: a player that doesn't know them plays anyway."""
        if self.transfer in _RANGES:
            for name, value in (
                ("ColourPrimaries", self.primaries),
                ("TransferCharacteristics", self.transfer),
                ("MatrixCoefficients", self.matrix),
            ):
                yield f'<SupplementalProperty schemeIdUri="{_CICP}:{name}" value="{value}"/>'


@dataclass(frozen=True)
class SubtitleTrack:
    """The subtitles of a video."""

    language: str = ""


def longest_s(tracks: Sequence[PlaylistTrack]) -> float:
    """When the last track ends, whatever duration the source claims."""
    return max((track.end_s for track in tracks), default=0.0)


def following(segments: Sequence[SegmentFile]) -> list[SegmentFile]:
    """The segments that follow each other from the first one on."""
    if not segments or segments[0].name != segment_name(0):
        return []
    together = takewhile(lambda pair: pair[0].end == pair[1].start, pairwise(segments))
    return [segments[0], *(segment for _, segment in together)]


def media_playlist(track: PlaylistTrack, segment_s: int) -> str:
    """The segments of one track.

    Players load it again while it grows, and RFC 8216 lets them find only more lines at its end.
    So the type is EVENT even when it is whole, and the target duration is known from the start.
    """
    lines = [
        "#EXTM3U",
        "#EXT-X-VERSION:7",
        f"#EXT-X-TARGETDURATION:{_target_s(track, segment_s)}",
        "#EXT-X-MEDIA-SEQUENCE:0",
        "#EXT-X-PLAYLIST-TYPE:EVENT",
        "#EXT-X-INDEPENDENT-SEGMENTS",
        '#EXT-X-MAP:URI="init.mp4"',
    ]
    for segment in track.segments:
        lines.append(f"#EXTINF:{_seconds(segment.end - segment.start, track.scale)},")
        lines.append(segment.name)
    if track.is_whole:
        lines.append("#EXT-X-ENDLIST")
    return "\n".join(lines) + "\n"


def _target_s(track: PlaylistTrack, segment_s: int) -> int:
    """No segment may be longer, as its length is written and rounded: halves up, as 4.5 to 5."""
    lengths = (segment.end - segment.start for segment in track.segments)
    longest = Decimal(_seconds(max(track.longest, *lengths, 0), track.scale))
    return max(segment_s, int(longest.to_integral_value(ROUND_HALF_UP)))


def _seconds(ticks: int, scale: int) -> str:
    return f"{ticks / scale:.6f}"


def captions(text: str, duration_s: float) -> dict[str, str]:
    """Subtitles as HLS players expect them: one segment, as long as the video."""
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
    video: Sequence[PlaylistTrack],
    audio: Sequence[PlaylistTrack],
    video_format: VideoFormat,
    folder: str = "",
    *,
    subtitles: SubtitleTrack | None = None,
) -> str:
    """Every rendition with every audio track; the best rendition first."""
    lines = ["#EXTM3U", "#EXT-X-VERSION:7", "#EXT-X-INDEPENDENT-SEGMENTS"]
    for n, one in enumerate(audio):
        number = f" {n + 1}" if n else ""
        lines.append(
            f'#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID="{AUDIO_GROUP}",'
            f"{_named(one.language, 'audio', number)},"
            f"DEFAULT={'NO' if n else 'YES'},AUTOSELECT=YES,"
            f'CHANNELS="{one.channels}",URI="{folder}{one.name}/index.m3u8"'
        )
    if subtitles is not None:
        lines.append(
            f'#EXT-X-MEDIA:TYPE=SUBTITLES,GROUP-ID="{TEXT_GROUP}",'
            f"{_named(subtitles.language, 'subtitles')},DEFAULT=NO,"
            f'AUTOSELECT=YES,FORCED=NO,URI="{folder}{TEXT_FOLDER}/index.m3u8"'
        )
    audio_peak_bps = max((one.peak_bps for one in audio), default=0)
    audio_mean_bps = max((one.mean_bps for one in audio), default=0)
    for track in video or audio:
        named = [track.codecs, *dict.fromkeys(one.codecs for one in audio)]
        extra = (audio_peak_bps, audio_mean_bps) if video else (0, 0)
        lines.append(
            f"#EXT-X-STREAM-INF:BANDWIDTH={track.peak_bps + extra[0]},"
            f"AVERAGE-BANDWIDTH={track.mean_bps + extra[1]},"
            f'CODECS="{",".join(dict.fromkeys(named))}"'
            + (f",RESOLUTION={track.width}x{track.height}" if video else "")
            + (video_format.hls if video else "")
            + (f',AUDIO="{AUDIO_GROUP}"' if audio else "")
            + (f',SUBTITLES="{TEXT_GROUP}"' if subtitles else "")
        )
        lines.append(f"{folder}{track.name}/index.m3u8")
    return "\n".join(lines) + "\n"


def _named(language: str, otherwise: str, number: str = "") -> str:
    """NAME and LANGUAGE of a rendition. Of the media's own text, only a language tag gets here."""
    tag = tag_of(language)
    return f'NAME="{tag or otherwise}{number}"' + (f',LANGUAGE="{tag}"' if tag else "")


def manifest(
    video: Sequence[PlaylistTrack],
    audio: Sequence[PlaylistTrack],
    video_format: VideoFormat,
    folder: str = "",
) -> str:
    """The DASH manifest over the same segments."""
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        '<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" minBufferTime="PT4S" '
        'profiles="urn:mpeg:dash:profile:isoff-live:2011" '
        f'mediaPresentationDuration="PT{longest_s([*video, *audio]):.6f}S">',
        "<Period>",
    ]
    if video:
        fastest = f'maxFrameRate="{video_format.fps}" ' if video_format.fps else ""
        lines.append(f'<AdaptationSet contentType="video" mimeType="video/mp4" {fastest}'
                     'segmentAlignment="true" startWithSAP="1">')  # fmt: skip
        lines += video_format.dash()
        for track in video:
            fps = video_format.mean_fps or video_format.fps
            rate = f' frameRate="{fps}"' if fps else ""
            size = f' width="{track.width}" height="{track.height}"'
            lines += _representation(track, folder, size + rate)
        lines.append("</AdaptationSet>")
    for one in audio:
        tag = tag_of(one.language)
        language = f' lang="{tag}"' if tag else ""
        lines.append(f'<AdaptationSet contentType="audio" mimeType="audio/mp4"{language} '
                     'segmentAlignment="true" startWithSAP="1">')  # fmt: skip
        lines += _representation(one, folder, f' audioSamplingRate="{one.rate_hz}"')
        lines.append("</AdaptationSet>")
    return "\n".join([*lines, "</Period>", "</MPD>"]) + "\n"


def _representation(track: PlaylistTrack, folder: str, attributes: str) -> list[str]:
    where = f"{folder}{track.name}"
    lines = [
        f"<Representation id={quoteattr(track.name)} codecs={quoteattr(track.codecs)} "
        f'bandwidth="{track.peak_bps}"{attributes}>',
        *_channels(track),
        f'<SegmentTemplate timescale="{track.scale}" initialization="{where}/init.mp4" '
        f'media="{where}/seg_$Number%05d$.m4s" startNumber="0">',
        "<SegmentTimeline>",
    ]
    begins = f' t="{track.segments[0].start}"' if track.segments else ""
    for ticks, alike in groupby(segment.end - segment.start for segment in track.segments):
        more = len(list(alike)) - 1
        lines.append(f'<S{begins} d="{ticks}"' + (f' r="{more}"/>' if more else "/>"))
        begins = ""
    return [*lines, "</SegmentTimeline>", "</SegmentTemplate>", "</Representation>"]


def _channels(track: PlaylistTrack) -> Iterator[str]:
    if track.channels:
        yield f'<AudioChannelConfiguration schemeIdUri="{_CHANNELS}" value="{track.channels}"/>'
