"""ffmpeg's own readers of HLS and DASH play all that `transcode` makes, and find no fault."""

from __future__ import annotations

import re
import subprocess
from itertools import pairwise
from pathlib import Path

import av
import imageio_ffmpeg
import pytest
from command_line import Cli

import media_samples
from intermission.pipelines.transcode.results import AUDIO_HZ
from transcoding import REF

SECONDS, RENDITIONS = 6, 2


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a video with joins at 2 and 4 s becomes."""
    cli = Cli(tmp_path_factory.mktemp("players"))
    video = media_samples.make(cli.folder / "video.mp4", seconds=SECONDS, size=(160, 120))
    cli("run", REF, video, "--ladder", "90p,60p", "--segment-seconds", "1", "--chunk-seconds", "2")
    return cli.folder / "videos" / "video"


@pytest.mark.parametrize("manifest", ["master.m3u8", "manifest.mpd"])
def test_every_rendition_is_decoded_without_a_warning(played: Path, manifest: str) -> None:
    # A line for each frame, and for each packet of audio.
    argv = [imageio_ffmpeg.get_ffmpeg_exe(), "-hide_banner", "-nostdin", "-v", "warning"]
    argv += ["-i", str(played / manifest), "-map", "0:v", "-map", "0:a"]
    argv += ["-fps_mode", "passthrough", "-f", "framehash", "-"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=180)
    assert (done.returncode, done.stderr) == (0, "")
    kinds = dict(re.findall(r"^#media_type (\d+): (\w+)$", done.stdout, re.MULTILINE))
    frames = [n for n, kind in kinds.items() if kind == "video"]
    assert len(frames) == RENDITIONS
    rows = [line.split(",") for line in done.stdout.splitlines() if not line.startswith("#")]
    for stream in frames:
        times = [int(row[2]) for row in rows if row[0].strip() == stream]
        steps = {later - earlier for earlier, later in pairwise(times)}
        assert len(times) == SECONDS * media_samples.FPS
        assert len(steps) == 1
    samples = sum(int(row[3]) for row in rows if kinds[row[0].strip()] == "audio")
    assert samples == pytest.approx(SECONDS * AUDIO_HZ, abs=0.1 * AUDIO_HZ)


def test_subtitles_are_read_at_their_times(cli: Cli) -> None:
    video = media_samples.make(cli.folder / "video.mp4", seconds=4, size=(160, 120))
    (cli.folder / "words.ger.vtt").write_text(
        "WEBVTT\n\n00:00.250 --> 00:01.750\nThe first words\n\n"
        "00:00:02.500 --> 00:00:03.500\nand the last\n"
    )
    cli("run", REF, video, "--ladder", "60p", "--subtitles", "words.ger.vtt")
    master = cli.folder / "videos" / "video" / "master.m3u8"
    with av.open(str(master)) as container:
        assert [stream.codec_context.name for stream in container.streams.subtitles] == ["webvtt"]
    assert 'TYPE=SUBTITLES,GROUP-ID="subtitles",NAME="de",LANGUAGE="de",' in master.read_text()
    (uri,) = re.findall(r'TYPE=SUBTITLES.*URI="([^"]+)"', master.read_text())
    with av.open(str(master.parent / uri)) as container:
        packets = [packet for packet in container.demux(subtitles=0) if packet.size]
        assert [(packet.pts, packet.duration, bytes(packet)) for packet in packets] == [
            (250, 1500, b"The first words"),
            (2500, 1000, b"and the last"),
        ]
