"""Very different sources, transcoded by the command: what went in comes out, and in sync."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.video.stream import VideoStream
from command_line import Cli, in_sentence, until

import media_samples
import samples
from intermission.media.video_info import HLG, PQ
from transcoding import REF
from video_samples import add_audio, clicks, ffmpeg, loud_from_s, luma, similarity, video

TRANSCODE = "intermission.pipelines.transcode:transcode"
CHUNK_S = 3
SMALL = ("--ladder", "120p=400k", "--chunk-seconds", str(CHUNK_S), "--segment-seconds", "1")
QUICK = (*SMALL, "--preset", "ultrafast")
WINDOW_S = 1.5
HZ = 8000
AUDIO_FRAME_S = 1024 / 48_000


def playlist(folder: Path, name: str) -> list[Path]:
    """The files of a track, in order, as its playlist names them."""
    text = (folder / name / "index.m3u8").read_text()
    assert text.endswith("#EXT-X-ENDLIST\n")
    (init,) = (line.split('"')[1] for line in text.splitlines() if "EXT-X-MAP" in line)
    parts = [line for line in text.splitlines() if not line.startswith("#")]
    return [folder / name / part for part in (init, *parts)]


def frames_of(folder: Path, name: str = "120p") -> list[av.VideoFrame]:
    path = folder / f"{name}.whole.mp4"
    path.write_bytes(b"".join(part.read_bytes() for part in playlist(folder, name)))
    with av.open(str(path)) as container:
        return list(container.decode(video=0))


def audio_of(source: Path) -> np.ndarray[Any, Any]:
    """What a player hears, from the first moment on."""
    to = source.with_name(f"{source.name}.f32")
    ffmpeg("-i", source, "-vn", "-af", "aresample=async=1:first_pts=0", "-ac", "1", "-ar", HZ,
           "-f", "f32le", to)  # fmt: skip
    return np.fromfile(to, np.float32)


def is_playable(folder: Path) -> None:
    import imageio_ffmpeg

    program = imageio_ffmpeg.get_ffmpeg_exe()
    command = [program, "-nostdin", "-v", "warning", "-xerror", "-i", folder / "master.m3u8"]
    done = subprocess.run(
        [*command, "-map", "0", "-fps_mode", "passthrough", "-enc_time_base:v", "demux",
         "-f", "null", "-"],
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def cut(source: Path, to: Path, seconds: float) -> Path:
    """The beginning of a source, its packets as they are."""
    ffmpeg("-i", source, "-t", seconds, "-map", "0", "-c", "copy", to)
    return to


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Path]:
    """Files that nobody made for this, all transcoded."""
    folder = tmp_path
    sources = [
        cut(samples.talk(), folder / "talk.mp4", 6),
        cut(samples.trailer(), folder / "trailer.mp4", 5),
        cut(samples.cockatoo(), folder / "cockatoo.mp4", 4.5),
        cut(samples.street(), folder / "street.avi", 7),
        folder / "face.mov",
        folder / "dialogue.avi",
    ]
    sources[4].write_bytes(samples.face().read_bytes())
    sources[5].write_bytes(samples.dialogue().read_bytes())
    cli = Cli(folder)
    try:
        cli("run", TRANSCODE, *sources, *QUICK)
        yield folder
    finally:
        cli.kill_all()


@pytest.mark.slow
def test_real_sources_come_out_whole_and_in_sync(real: Path) -> None:
    for name in ("talk.mp4", "trailer.mp4", "cockatoo.mp4", "street.avi", "face.mov"):
        pictures_are_those_of(real / name)
    pictures_are_those_of(real / "dialogue.avi", is_counted=True)
    for name in ("talk.mp4", "trailer.mp4", "cockatoo.mp4", "dialogue.avi"):
        sound_is_that_of(real / name)


def pictures_are_those_of(source: Path, *, is_counted: bool = False) -> None:
    """All of them, at their times, and as good at the joins as elsewhere."""
    folder = source.parent / "videos" / source.stem
    shown = frames_of(folder)
    with av.open(str(source)) as container:
        size = shown[0].width, shown[0].height
        wanted = [
            (frame.time, luma(frame.reformat(*size, interpolation="BICUBIC")))
            for frame in container.decode(video=0)
        ]
    assert len(shown) == len(wanted)
    times = [float(frame.time or 0) for frame in shown]
    assert times[0] == 0
    assert all(one < other for one, other in pairwise(times))
    if not is_counted:
        start = wanted[0][0] or 0
        assert times == pytest.approx([(at or 0) - start for at, _ in wanted], abs=0.002)
    likeness = [similarity(was, luma(now)) for (_, was), now in zip(wanted, shown, strict=True)]
    assert np.mean(likeness) > 0.8
    for second in range(CHUNK_S, int(times[-1]), CHUNK_S):
        join = int(np.searchsorted(times, second - 0.0005))
        around = likeness[join - 12 : join - 1] + likeness[join + 2 : join + 12]
        assert min(likeness[join - 1 : join + 2]) > min(around) - 0.03, f"the join at {second} s"
    is_playable(folder)


def sound_is_that_of(source: Path) -> None:
    """At its beginning, in its middle and at its end."""
    was = audio_of(source)
    folder = source.parent / "videos" / source.stem
    now = audio_of(folder / "master.m3u8")
    lasts_s = max(len(was) / HZ, length_s(folder / "120p" / "index.m3u8"))
    assert len(now) / HZ == pytest.approx(lasts_s, abs=0.1)
    window = int(WINDOW_S * HZ)
    for start in (HZ // 10, len(was) // 2, len(was) - window - HZ // 2):
        off = shift_s(was[start : start + window], now, start)
        assert off is None or abs(off) <= 0.02, f"{off} s off at {start / HZ} s"


def shift_s(piece: np.ndarray[Any, Any], whole: np.ndarray[Any, Any], start: int) -> float | None:
    """By how much a piece of audio comes later; None for silence."""
    if np.abs(piece).max() < 0.01:
        return None
    reach = HZ // 10
    first = max(0, start - reach)
    around = whole[first : start + len(piece) + reach]
    match = np.correlate(around, piece, "valid")
    return (first + int(match.argmax()) - start) / HZ


MARKS_S = [0.2, 2.0, 4.6]


def marked(path: Path) -> Path:
    """Flashes and clicks at the same moments; the frames are numbered otherwise."""

    def draw(number: int, size: tuple[int, int]) -> np.ndarray[Any, Any]:
        is_flash = any(0 <= number - round(at * 25) < 2 for at in MARKS_S)
        return np.full(size[::-1], 230 if is_flash else 30, np.uint8)

    frames = video(path.with_suffix(".video.mp4"), count=130, draw=draw, size=(160, 120),
                    options={"x264-params": "open-gop=1:keyint=12:bframes=3"})  # fmt: skip
    audio = path.with_suffix(".audio.wav")
    with av.open(str(audio), "w") as out:
        add_audio(out, clicks(5.2, MARKS_S, 44_100), 44_100, codec="pcm_s16le", layout="mono")()
    ffmpeg("-i", frames, "-i", audio, "-c:v", "copy", "-c:a", "aac", path)
    return path


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Path]:
    """The same video in odd forms, all transcoded."""
    folder = tmp_path
    plain = marked(folder / "plain.mp4")
    ffmpeg("-i", plain, "-c", "copy", "-output_ts_offset", "7", folder / "offset.ts")
    ffmpeg("-ss", "0.08", "-i", plain, "-c", "copy", folder / "edited.mp4")
    ffmpeg("-display_rotation", "90", "-i", plain, "-c", "copy", folder / "upright.mov")
    ffmpeg("-i", plain, "-vf", "setfield=tff,setsar=4/3", "-c:v", "mpeg2video", "-q:v", "3",
           "-flags", "+ildct+ilme", "-bf", "2", "-c:a", "mp2", folder / "fields.mpg")  # fmt: skip
    ffmpeg("-i", plain, "-i", plain, "-map", "0:v", "-map", "0:a", "-map", "1:a", "-c:v", "copy",
           "-c:a:0", "ac3", "-c:a:1", "libopus", "-ac:a:0", "6", "-metadata:s:a:1", "language=deu",
           "-strict", "-2", folder / "tracks.mkv")  # fmt: skip
    for name in ("plain.video.mp4", "plain.audio.wav"):
        (folder / name).rename(folder / f"used.{name}")
    cli = Cli(folder)
    try:
        cli("run", TRANSCODE, *(folder / name for name in MADE), *QUICK, "--surround", "true")
        yield folder
    finally:
        cli.kill_all()


MADE = {"plain.mp4": 0.0, "offset.ts": 0.0, "edited.mp4": 0.08, "upright.mov": 0.0,
        "fields.mpg": 0.0, "tracks.mkv": 0.0}  # fmt: skip
"""With how much of the video was cut off."""


@pytest.mark.slow
def test_flashes_and_clicks_stay_together(made: Path) -> None:
    for name, cut_s in MADE.items():
        marks_are_together(made / "videos" / Path(name).stem, [at - cut_s for at in MARKS_S])
    upright = frames_of(made / "videos" / "upright")[0]
    assert (upright.width, upright.height) == (120, 160)
    wide = frames_of(made / "videos" / "fields")[0]
    assert (wide.width, wide.height) == (212, 120)
    master = (made / "videos" / "tracks" / "master.m3u8").read_text()
    assert master.count("TYPE=AUDIO") == 3
    assert [f'CHANNELS="{n}"' in master for n in (2, 1, 6)] == [True, True, True]
    assert 'LANGUAGE="de"' in master


def marks_are_together(folder: Path, expected: list[float]) -> None:
    frames = frames_of(folder)
    bright = [float(frame.time or 0) for frame in frames if luma(frame).mean() > 120]
    flashes = [at for n, at in enumerate(bright) if n == 0 or at - bright[n - 1] > 0.5]
    heard = loud_from_s(audio_of(folder / "master.m3u8")[None], HZ)
    assert flashes == pytest.approx(heard, abs=0.02)
    assert flashes == pytest.approx(expected, abs=0.05)
    is_playable(folder)


def test_audio_alone_and_a_video_without_audio(cli: Cli) -> None:
    ffmpeg("-f", "lavfi", "-i", "sine=d=3", cli.folder / "song.mp3")
    cover = cli.folder / "cover.png"
    ffmpeg("-f", "lavfi", "-i", "color=red:s=64x64:d=1", "-frames:v", "1", cover)
    ffmpeg("-i", cli.folder / "song.mp3", "-i", cover, "-map", "0", "-map", "1", "-c:a", "aac",
           "-c:v", "copy", "-disposition:v", "attached_pic", cli.folder / "album.m4a")  # fmt: skip
    video(cli.folder / "silent.mp4", count=30)
    cli("run", TRANSCODE, "song.mp3", "album.m4a", "silent.mp4", *QUICK)
    for name in ("song", "album"):
        folder = cli.folder / "videos" / name
        assert "RESOLUTION" not in (folder / "master.m3u8").read_text()
        assert len(audio_of(folder / "master.m3u8")) / HZ == pytest.approx(3, abs=0.1)
    silent = cli.folder / "videos" / "silent"
    assert "AUDIO" not in (silent / "master.m3u8").read_text()
    for folder in (silent, cli.folder / "videos" / "song", cli.folder / "videos" / "album"):
        is_playable(folder)


def test_audio_lasts_as_long_as_the_frames(cli: Cli) -> None:
    """Some players end where the shorter of the two ends. What is longer keeps its length."""
    short = video(cli.folder / "video.mp4", count=30)
    ffmpeg("-i", short, "-f", "lavfi", "-i", "sine=d=3", "-c:v", "copy", cli.folder / "long.mp4")
    ffmpeg("-i", short, "-f", "lavfi", "-i", "sine=d=0.5", "-c:v", "copy", cli.folder / "brief.mp4")
    cli("run", TRANSCODE, "long.mp4", "brief.mp4", *QUICK, "--mp4", "64p")
    for name, heard_s, lasts_s, within_s in (
        ("brief", 0.5, 1.2, AUDIO_FRAME_S),
        ("long", 3, 3, 2 * AUDIO_FRAME_S),  # the source's own last frame is padded too
    ):
        folder = cli.folder / "videos" / name
        assert len(frames_of(folder, "64p")) == 30
        assert length_s(folder / "64p" / "index.m3u8") == 1.2
        assert 0 <= length_s(folder / "audio" / "0" / "index.m3u8") - lasts_s <= within_s
        assert 0 <= audio_length_s(folder / "64p.mp4") - lasts_s <= within_s
        loud = np.flatnonzero(np.abs(audio_of(folder / "master.m3u8")) > 0.01)
        assert loud[-1] / HZ == pytest.approx(heard_s, abs=0.1)
        is_playable(folder)


def length_s(index: Path) -> float:
    """The length of all segments that a playlist names."""
    return round(sum(map(float, re.findall(r"#EXTINF:([\d.]+)", index.read_text()))), 6)


def audio_length_s(path: Path) -> float:
    with av.open(str(path)) as container:
        return sum(frame.samples / frame.sample_rate for frame in container.decode(audio=0))


def test_segments_keep_to_the_target_duration_while_they_appear(cli: Cli) -> None:
    """Slides: a segment can't end before the next frame is shown."""
    source = video(cli.folder / "slides.mp4", times=[Fraction(n, 2) for n in (0, 3, 6, 11, 12, 16)])
    cli.env["GATES"] = str(cli.folder)
    (cli.folder / "0").touch()
    args = ("--ladder", "64p", "--chunk-seconds", "1", "--segment-seconds", "1")
    process = cli.start("run", REF, source, *args)
    index = cli.folder / "videos" / "slides" / "64p" / "index.m3u8"
    until(index.exists)
    growing = index.read_text()
    for n in range(1, 9):
        (cli.folder / str(n)).touch()
    assert cli.end(process).code == 0
    done = index.read_text()
    assert max(map(float, re.findall(r"#EXTINF:([\d.]+)", done))) == 2.5
    for text in (growing, done):
        assert "#EXT-X-TARGETDURATION:3\n" in text
    assert done.startswith(growing), "players may only find more at its end"


def test_a_video_that_was_cut_keeps_its_frame_rate(cli: Cli) -> None:
    fps = Fraction(24_000, 1001)
    whole = video(cli.folder / "whole.mp4", times=[n / fps for n in range(75)])
    ffmpeg("-ss", "1", "-i", whole, "-c", "copy", cli.folder / "cut.mkv")  # from a key frame on
    times = [n / fps for n in range(75) if not 20 <= n < 30]
    video(cli.folder / "hole.mp4", times=[*times, times[-1] + 1])
    cli("run", TRANSCODE, "cut.mkv", "hole.mp4", *QUICK)
    for name in ("cut", "hole"):
        folder = cli.folder / "videos" / name
        assert "FRAME-RATE=23.976\n" in (folder / "master.m3u8").read_text()
        assert 'frameRate="24000/1001"' in (folder / "manifest.mpd").read_text()


def test_a_varying_frame_rate_is_told_by_its_maximum(cli: Cli) -> None:
    slow = [Fraction(n, 10) for n in range(20)]
    source = video(cli.folder / "a.mp4", times=[*slow, *(2 + Fraction(n, 50) for n in range(20))])
    cli("run", TRANSCODE, source, *QUICK)
    folder = cli.folder / "videos" / "a"
    assert "FRAME-RATE=50.000\n" in (folder / "master.m3u8").read_text()
    assert 'maxFrameRate="50"' in (folder / "manifest.mpd").read_text()


@pytest.mark.parametrize(("codec", "named"), [("hevc", "hvc1.2.4."), ("av1", "av01.0.")])
def test_other_codecs_run_locked_in(codec: str, named: str, cli: Cli) -> None:
    """With the limits of a child on memory, files and threads."""
    source = video(cli.folder / "a.mkv", codec="ffv1", pix_fmt="yuv420p10le", size=(192, 128))
    cli("run", TRANSCODE, source, *SMALL, "--codec", codec, "--threads", "2")
    folder = cli.folder / "videos" / "a"
    assert f'CODECS="{named}' in (folder / "master.m3u8").read_text()
    frames = frames_of(folder)
    assert [frame.time for frame in frames] == [float(Fraction(n, 25)) for n in range(75)]
    assert frames[0].format.name == "yuv420p10le"
    is_playable(folder)


@pytest.mark.parametrize(
    ("transfer", "hdr", "named", "tags"),
    [(PQ, "keep", "VIDEO-RANGE=PQ", (9, PQ, 9)), (HLG, "auto", "VIDEO-RANGE=HLG", (9, HLG, 9)),
     (PQ, "tone-map", None, (1, 1, 1))],
)  # fmt: skip
def test_hdr_that_is_kept_is_named(
    transfer: int, hdr: str, named: str | None, tags: tuple[int, int, int], cli: Cli
) -> None:
    def setup(stream: VideoStream) -> None:
        context = stream.codec_context
        context.color_primaries, context.color_trc, context.colorspace = 9, transfer, 9

    source = video(cli.folder / "a.mp4", codec="libx265", pix_fmt="yuv420p10le", size=(128, 96),
                  count=5, options={"x265-params": "log-level=none:pools=none"},
                  setup=setup)  # fmt: skip
    cli("run", TRANSCODE, source, *QUICK, "--codec", "hevc", "--hdr", hdr)
    folder = cli.folder / "videos" / "a"
    frame = frames_of(folder, "96p")[0]
    assert (frame.color_primaries, frame.color_trc, frame.colorspace) == tags
    assert re.findall(r"VIDEO-RANGE=\w+", (folder / "master.m3u8").read_text()) == (
        [named] if named else []
    )
    properties = re.findall(r'cicp:\w+" value="(\d+)"', (folder / "manifest.mpd").read_text())
    assert properties == ([str(tag) for tag in tags] if named else [])
    is_playable(folder)


def test_a_damaged_video_fails_and_says_where(cli: Cli) -> None:
    source = video(cli.folder / "a.mp4", count=100, options={"bf": "0"})
    data = bytearray(source.read_bytes())
    with av.open(str(source)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    for packet in packets[80:86]:
        data[(packet.pos or 0) + 4 : (packet.pos or 0) + packet.size] = bytes(packet.size - 4)
    source.write_bytes(data)
    ended = cli("run", TRANSCODE, source, *QUICK, code=1)
    assert "a.mp4 is damaged at 3.200 s: from 2.000 to 4.000 s" in ended.err
    assert "(1 attempt)" in ended.err


def test_an_encoder_that_does_not_start_is_named(cli: Cli) -> None:
    video(cli.folder / "a.mp4", count=5)
    ended = cli("run", TRANSCODE, "a.mp4", *SMALL, "--preset", "leisurely", code=1)
    assert "libx264 does not start here" in ended.err
    assert "Check --preset" in ended.err


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is such a device here")
def test_hardware_that_is_not_there_is_missed(cli: Cli) -> None:
    video(cli.folder / "a.mp4", count=5)
    ended = cli("run", TRANSCODE, "a.mp4", *SMALL, "--hardware", "nvenc", code=1)
    assert "h264_nvenc does not start here" in ended.err
    assert "Leave out --hardware" in ended.err


def test_hdr_that_cannot_be_kept_is_refused_at_once(cli: Cli) -> None:
    video(cli.folder / "a.mp4", count=5)
    in_sentence(
        cli("run", TRANSCODE, "a.mp4", "--hdr", "keep", code=2).err, "--hdr keep", "--codec hevc"
    )


def test_a_language_tag_cannot_write_into_a_playlist(cli: Cli) -> None:
    tag = 'de",URI="https://elsewhere.example/a.m3u8"\n#EXT-X-ENDLIST\nhttps://elsewhere.example/b'
    path = media_samples.make(cli.folder / "talk.mkv", seconds=1, size=(160, 120), language=tag)
    assert tag.encode() in path.read_bytes()
    cli("run", TRANSCODE, path, *QUICK)
    folder = cli.folder / "videos" / "talk"
    for text in (folder.rglob("*.m3u8"), folder.rglob("*.mpd"), folder.rglob("*.vtt")):
        for file in text:
            assert "elsewhere" not in file.read_text()
    master = (folder / "master.m3u8").read_text().splitlines()
    assert [line.split(":")[0] for line in master if line.startswith("#")] == [
        "#EXTM3U",
        "#EXT-X-VERSION",
        "#EXT-X-INDEPENDENT-SEGMENTS",
        "#EXT-X-MEDIA",
        "#EXT-X-STREAM-INF",
    ]
    is_playable(folder)
