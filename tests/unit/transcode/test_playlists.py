"""Playlists as text: what is whole, what goes on, and where it leads."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from xml.etree import ElementTree

import pytest

from intermission.media.video_info import HLG, PQ
from intermission.pipelines.transcode.playlists import (
    PlaylistTrack,
    SegmentFile,
    SubtitleTrack,
    VideoFormat,
    captions,
    following,
    manifest,
    master_playlist,
    media_playlist,
    segment_name,
)


def segments(*spans: tuple[int, int], first: int = 0) -> list[SegmentFile]:
    return [
        SegmentFile(name=segment_name(first + n), start=start, end=end, size_bytes=1000)
        for n, (start, end) in enumerate(spans)
    ]


def track(*spans: tuple[int, int], is_whole: bool = True) -> PlaylistTrack:
    return PlaylistTrack(
        name="720p",
        codecs="avc1.64001f",
        scale=1000,
        segments=segments(*spans),
        is_whole=is_whole,
        width=1280,
        height=720,
        kbps=2500,
    )


def test_segments_count_as_far_as_they_follow_each_other() -> None:
    whole = segments((0, 4), (4, 8), (8, 9))
    assert following(whole) == whole
    assert following([whole[0], whole[2]]) == whole[:1]
    assert following(whole[1:]) == [], "the beginning is missing"
    assert following([]) == []


def test_a_playlist_goes_on_until_it_is_whole() -> None:
    growing = media_playlist(track((0, 4000), is_whole=False), 4)
    assert "#EXT-X-PLAYLIST-TYPE:EVENT" in growing
    assert "ENDLIST" not in growing
    done = media_playlist(track((0, 4000), (4000, 6500)), 4)
    assert done == f"{growing}#EXTINF:2.500000,\nseg_00001.m4s\n#EXT-X-ENDLIST\n"


def target_s(playlist: str) -> int:
    return int(re.findall(r"^#EXT-X-TARGETDURATION:(\d+)$", playlist, re.MULTILINE)[0])


@pytest.mark.parametrize("longest", [4000, 4021, 4499, 4500, 4999, 5500, 6500, 61_500])
def test_no_segment_is_longer_than_the_target(longest: int) -> None:
    """RFC 8216 rounds halves up: 4.5 s is 5, and 6.5 s is 7."""
    for spans in (((0, longest), (longest, longest + 100)), ((0, 100), (100, 100 + longest))):
        playlist = media_playlist(track(*spans), 4)
        lengths = [Decimal(text) for text in re.findall(r"#EXTINF:([\d.]+),", playlist)]
        rounded = [int(one.quantize(Decimal(1), ROUND_HALF_UP)) for one in lengths]
        assert target_s(playlist) == max(4, *rounded)


def test_the_target_does_not_change_while_a_playlist_grows() -> None:
    growing = track((0, 4000), is_whole=False).model_copy(update={"longest": 6500})
    done = track((0, 4000), (4000, 10_500)).model_copy(update={"longest": 6500})
    assert target_s(media_playlist(growing, 4)) == target_s(media_playlist(done, 4)) == 7


def test_bandwidth_is_as_planned_until_it_is_known() -> None:
    growing = master_playlist([track((0, 4000), is_whole=False)], [], VideoFormat(Fraction(25)))
    assert "BANDWIDTH=2500000,AVERAGE-BANDWIDTH=2500000" in growing
    done = master_playlist([track((0, 4000), (4000, 5000))], [], VideoFormat(Fraction(25)))
    assert "BANDWIDTH=8000,AVERAGE-BANDWIDTH=3200" in done


def test_what_leads_elsewhere_says_where() -> None:
    tracks = [track((0, 4000))]
    master = master_playlist(tracks, tracks, VideoFormat(), "{version}")
    assert '"{version}720p/index.m3u8"' in master
    assert master.endswith("\n{version}720p/index.m3u8\n")
    document = manifest(tracks, tracks, VideoFormat(), "{version}")
    assert document.count('initialization="{version}720p/init.mp4"') == 2
    assert document.count('media="{version}720p/seg_$Number%05d$.m4s"') == 2


def test_subtitles_are_one_segment_that_begins_with_the_video() -> None:
    texts = captions("WEBVTT - a talk\n\n00:01.000 --> 00:02.000\nHello\n", 61.7)
    assert texts["subtitles/0/subtitles.vtt"] == (
        "WEBVTT - a talk\nX-TIMESTAMP-MAP=MPEGTS:0,LOCAL:00:00:00.000\n\n"
        "00:01.000 --> 00:02.000\nHello\n"
    )
    assert "#EXT-X-TARGETDURATION:62\n" in texts["subtitles/0/index.m3u8"]
    master = master_playlist([track((0, 4000))], [], VideoFormat(), "v/", subtitles=SubtitleTrack())
    assert 'TYPE=SUBTITLES,GROUP-ID="subtitles"' in master
    assert 'URI="v/subtitles/0/index.m3u8"' in master
    assert ',SUBTITLES="subtitles"\n' in master


def test_equal_segments_are_told_once() -> None:
    document = manifest([track((0, 4), (4, 8), (8, 12), (12, 13))], [], VideoFormat())
    assert '<S t="0" d="4" r="2"/>\n<S d="1"/>' in document


@pytest.mark.parametrize(("transfer", "named"), [(PQ, "PQ"), (HLG, "HLG")])
def test_hdr_is_named(transfer: int, named: str) -> None:
    video_format = VideoFormat(Fraction(24_000, 1001), 9, transfer, 9)
    master = master_playlist([track((0, 4000))], [], video_format)
    assert f",RESOLUTION=1280x720,FRAME-RATE=23.976,VIDEO-RANGE={named}\n" in master
    found = ElementTree.fromstring(manifest([track((0, 4000))], [track((0, 4000))], video_format))
    video, audio = found.iterfind(".//{*}AdaptationSet")
    assert [tuple(one.attrib.values()) for one in video.iterfind("{*}SupplementalProperty")] == [
        ("urn:mpeg:mpegB:cicp:ColourPrimaries", "9"),
        ("urn:mpeg:mpegB:cicp:TransferCharacteristics", str(transfer)),
        ("urn:mpeg:mpegB:cicp:MatrixCoefficients", "9"),
    ]
    assert audio.find("{*}SupplementalProperty") is None
    assert [one.get("frameRate") for one in video.iterfind("{*}Representation")] == ["24000/1001"]


def test_hls_names_the_highest_frame_rate_and_dash_the_average_too() -> None:
    video_format = VideoFormat(Fraction(60), mean_fps=Fraction(45, 2))
    assert "FRAME-RATE=60.000" in master_playlist([track((0, 4000))], [], video_format)
    document = ElementTree.fromstring(manifest([track((0, 4000))], [], video_format))
    assert [one.get("maxFrameRate") for one in document.iterfind(".//{*}AdaptationSet")] == ["60"]
    assert [one.get("frameRate") for one in document.iterfind(".//{*}Representation")] == ["45/2"]


def test_the_range_of_every_screen_is_not_named() -> None:
    video_format = VideoFormat(primaries=9, transfer=14, matrix=9)
    assert "VIDEO-RANGE" not in master_playlist([track((0, 4000))], [], video_format)
    assert "Property" not in manifest([track((0, 4000))], [], video_format)


def test_a_video_is_as_long_as_its_longest_track() -> None:
    video = track((0, 4000), (4000, 6500))
    audio = track((0, 4000), (4000, 6506)).model_copy(update={"name": "audio/0"})
    for tracks in (([video], [audio]), ([audio], [video])):
        assert 'mediaPresentationDuration="PT6.506000S"' in manifest(*tracks, VideoFormat())
    assert 'mediaPresentationDuration="PT6.500000S"' in manifest([video], [], VideoFormat())


def spoken(language: str) -> PlaylistTrack:
    return track((0, 4000)).model_copy(update={"name": "audio/0", "language": language})


def media_lines(master: str) -> list[dict[str, str]]:
    """The attributes of every audio and subtitle rendition."""
    found = [line for line in master.splitlines() if line.startswith("#EXT-X-MEDIA:")]
    for line in found:
        assert re.fullmatch(r'#EXT-X-MEDIA:((?:[A-Z-]+=(?:"[^"]*"|[^",]+),?)+)', line)
    return [dict(re.findall(r'([A-Z-]+)=("[^"]*"|[^",]+)', line)) for line in found]


def test_languages_are_named_as_players_expect() -> None:
    audio, subtitles = [spoken("ger"), spoken("eng"), spoken("")], SubtitleTrack("fre")
    master = master_playlist([track((0, 4000))], audio, VideoFormat(), subtitles=subtitles)
    assert [(one["TYPE"], one.get("LANGUAGE"), one["NAME"]) for one in media_lines(master)] == [
        ("AUDIO", '"de"', '"de"'),
        ("AUDIO", '"en"', '"en 2"'),
        ("AUDIO", None, '"audio 3"'),
        ("SUBTITLES", '"fr"', '"fr"'),
    ]
    document = ElementTree.fromstring(manifest([], audio, VideoFormat()))
    found = [one.get("lang") for one in document.iterfind(".//{*}AdaptationSet")]
    assert found == ["de", "en", None]


@pytest.mark.parametrize("channels", [1, 2, 6])
def test_the_number_of_channels_is_told(channels: int) -> None:
    audio = [spoken("de").model_copy(update={"channels": channels})]
    master = master_playlist([track((0, 4000))], audio, VideoFormat())
    assert [one["CHANNELS"] for one in media_lines(master)] == [f'"{channels}"']
    document = ElementTree.fromstring(manifest([track((0, 4000))], audio, VideoFormat()))
    video, heard = document.iterfind(".//{*}Representation")
    assert video.find("{*}AudioChannelConfiguration") is None
    (told, template) = heard  # in the order of the schema
    assert told.tag.endswith("}AudioChannelConfiguration")
    assert told.attrib == {
        "schemeIdUri": "urn:mpeg:dash:23003:3:audio_channel_configuration:2011",
        "value": str(channels),
    }
    assert template.tag.endswith("}SegmentTemplate")


@pytest.mark.parametrize(
    "text", ['de"', "de\n#EXT-X-ENDLIST", "de\r\nevil.m3u8", "de\0\x1b", "de\u2028", "<b>de</b>"]
)
def test_text_from_the_media_does_not_reach_players(text: str) -> None:
    subtitles = SubtitleTrack(text)
    master = master_playlist([track((0, 4000))], [spoken(text)], VideoFormat(), subtitles=subtitles)
    assert len(master.splitlines()) == 7
    assert [(one.get("LANGUAGE"), one["NAME"]) for one in media_lines(master)] == [
        (None, '"audio"'),
        (None, '"subtitles"'),
    ]
    document = ElementTree.fromstring(manifest([], [spoken(text)], VideoFormat()))
    assert [one.get("lang") for one in document.iterfind(".//{*}AdaptationSet")] == [None]
