"""Audio begins where it begins in the source: clicks come out when they went in."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest

from intermission.errors import MediaError
from intermission.media import decoders
from intermission.media.encode_client import encode_audio
from intermission.media.info import AudioStream
from intermission.media.refusal import Refused
from intermission.media.request import AudioRequest
from intermission.pipelines.transcode import audio_tracks
from intermission.pipelines.transcode.results import Probed
from media_samples import make
from video_samples import add_audio, clicks, heard, loud_from_s

AT_S = [0.5, 1.0, 2.25, 2.9]
CHANNELS = {"mono": 1, "stereo": 2, "5.1": 6}


def made(path: Path, codec: str, rate_hz: int, layout: str = "stereo", late_s: float = 0) -> Path:
    with av.open(str(path), "w") as out:
        samples = clicks(3.2, AT_S, rate_hz, CHANNELS[layout])
        add_audio(out, samples, rate_hz, codec=codec, layout=layout, late_s=late_s)()
    return path


@pytest.mark.parametrize(
    ("name", "codec", "rate_hz", "layout"),
    [
        ("a.wav", "pcm_s16le", 44_100, "mono"),
        ("a.mp4", "aac", 44_100, "stereo"),
        ("a.mkv", "aac", 48_000, "stereo"),
        ("a.webm", "libopus", 48_000, "stereo"),
        ("a.mp3", "libmp3lame", 44_100, "stereo"),
        ("surround.mkv", "ac3", 48_000, "5.1"),
        ("surround.m4a", "aac", 48_000, "5.1"),
    ],
)
def test_a_click_comes_when_it_came(
    name: str, codec: str, rate_hz: int, layout: str, tmp_path: Path
) -> None:
    audio = heard(made(tmp_path / name, codec, rate_hz, layout))
    samples = audio.samples()
    assert len(samples) == 2
    assert loud_from_s(samples) == pytest.approx(AT_S, abs=0.001)
    assert b"elst" not in audio.init
    assert audio.segments[0].start == 0
    assert all(before.end == after.start for before, after in pairwise(audio.segments))
    assert samples.shape[1] / 48_000 == pytest.approx(3.2, abs=0.05)


def test_every_channel_is_heard_in_two(tmp_path: Path) -> None:
    """A click in the centre and one behind: a player with two loudspeakers plays both."""
    samples = np.zeros((6, 96_000), np.int16)
    samples[2, 24_000:24_480] = 20_000
    samples[4, 48_000:48_480] = 20_000
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as out:
        add_audio(out, samples, 48_000, codec="flac", layout="5.1")()
    left, right = np.abs(heard(path).samples())
    assert left[24_000:24_480].max() == pytest.approx(right[24_000:24_480].max(), abs=0.05)
    assert left[24_000:24_480].max() > 0.1
    assert left[48_000:48_480].max() > 0.1 > right[48_000:48_480].max()


def test_surround_is_kept_if_asked_for(tmp_path: Path) -> None:
    audio = heard(made(tmp_path / "a.mkv", "flac", 48_000, "5.1"), layout="5.1")
    samples = audio.samples()
    assert len(samples) == 6
    assert loud_from_s(samples) == pytest.approx(AT_S, abs=0.001)


@pytest.mark.parametrize(("surround", "expected"), [(False, [2, 1]), (True, [2, 1, 6])])
def test_tracks_are_those_of_the_source(
    surround: bool, expected: list[int], tmp_path: Path
) -> None:
    audio = [AudioStream(1, "ac3", 48_000, 6, "deu"), AudioStream(2, "aac", 44_100, 1, "und")]
    probed = Probed(video=None, audio=audio, duration_ms=1, stamps=tmp_path / "stamps", keys=0)
    found = audio_tracks.function(probed, surround)
    assert [one.channels for one in found] == expected
    assert [one.number for one in found] == list(range(len(expected)))
    assert [one.language for one in found][:2] == ["deu", ""]


def test_audio_that_begins_late_begins_late(tmp_path: Path) -> None:
    path = tmp_path / "a.mkv"
    with av.open(str(path), "w") as out:
        early = add_audio(out, clicks(3, [0.2], 48_000), 48_000, codec="flac", layout="mono")
        late = add_audio(
            out, clicks(1, [0.5], 48_000), 48_000, codec="flac", layout="mono", late_s=1.25
        )
        early()
        late()
    assert loud_from_s(heard(path, stream=0).samples()) == pytest.approx([0.2], abs=0.001)
    assert loud_from_s(heard(path, stream=1).samples()) == pytest.approx([1.75], abs=0.001)


def two_tracks(path: Path) -> Path:
    """One in FLAC, one in AC-3."""
    with av.open(str(path), "w") as out:
        tracks = [
            add_audio(out, clicks(1, [0.2], 48_000), 48_000, codec=codec, layout="mono")
            for codec in ("flac", "ac3")
        ]
        for add in tracks:
            add()
    return path


@pytest.mark.parametrize("stream", [2, 7])
def test_a_track_that_is_not_there_is_refused_and_the_others_are_named(
    stream: int, tmp_path: Path
) -> None:
    path = two_tracks(tmp_path / "a.mkv")
    named = rf"a\.mkv has no audio track {stream}\. It has: 0 \(flac\), 1 \(ac3\)\."
    with pytest.raises(MediaError, match=named):
        encode_audio(path, AudioRequest(stream, 48_000, "stereo", 128, 4), lambda *_: None)


def test_a_track_is_refused_where_there_is_no_audio(tmp_path: Path) -> None:
    path = make(tmp_path / "mute.mp4", audio=None, seconds=1)
    with pytest.raises(MediaError, match=r"mute\.mp4 has no audio track 1\. It has: none\."):
        encode_audio(path, AudioRequest(1, 48_000, "stereo", 128, 4), lambda *_: None)


def test_a_track_that_cannot_be_decoded_is_not_replaced_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = two_tracks(tmp_path / "a.mkv")
    monkeypatch.setattr(decoders, "ALLOWED", decoders.ALLOWED - {"ac3"})
    with pytest.raises(Refused, match=r"audio track 1 in a format that is not supported \(ac3\)"):
        heard(path, stream=1)
