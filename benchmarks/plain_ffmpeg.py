"""The ffmpeg program by itself: the video that is transcoded, the same ladder without us, SSIM.

Every encoder gets the settings that `transcode` uses, and every rendition is made from the next
larger one where they are made together.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import imageio_ffmpeg

FFMPEG = imageio_ffmpeg.get_ffmpeg_exe()
QUIET = [FFMPEG, "-hide_banner", "-nostdin", "-y", "-v", "error"]
SEGMENT_S = 4
CORES = 2
_SSIM = re.compile(r"SSIM .*All:([0-9.]+)")


@dataclass(frozen=True)
class RenditionSize:
    """One rendition of the ladder."""

    height: int
    kbps: int

    @property
    def name(self) -> str:
        return f"{self.height}p"

    @property
    def width(self) -> int:
        return 2 * round(self.height * 16 / 9 / 2)

    @property
    def scale(self) -> str:
        return f"scale={self.width}:{self.height}:flags=bicubic:out_range=tv"


def make_film(trailer: Path, path: Path, height: int, seconds: float) -> Path:
    """An animated video, again and again, with the grain that a camera would give it."""
    grain = f"{RenditionSize(height, 0).scale},fps=24,noise=c0s=4:allf=t,format=yuv420p"
    settings = ["-c:v", "libx264", "-preset", "veryfast", "-crf", "20", "-c:a", "aac", "-ac", "2"]
    source = ["-stream_loop", "-1", "-i", str(trailer), "-t", str(seconds), "-vf", grain]
    subprocess.run([*QUIET, *source, *settings, "-ar", "48000", str(path)], check=True)
    return path


def together(video: Path, folder: Path, renditions: Sequence[RenditionSize]) -> None:
    """One command: decoded once, scaled in a cascade, all renditions and the audio."""
    argv = [*QUIET, "-i", str(video), "-filter_complex", _cascade(renditions)]
    subprocess.run(
        [*argv, *_frames(renditions), *_audio(), *_hls(folder, renditions, True)], check=True
    )


def one_by_one(video: Path, folder: Path, renditions: Sequence[RenditionSize]) -> None:
    """A command for each rendition, the first with the audio."""
    for n, rendition in enumerate(renditions):
        argv = [
            *QUIET,
            "-i",
            str(video),
            "-filter_complex",
            _cascade([rendition]),
            *_frames([rendition]),
        ]
        audio = _audio() if n == 0 else []
        subprocess.run([*argv, *audio, *_hls(folder, [rendition], n == 0)], check=True)


def in_chunks(
    video: Path, folder: Path, renditions: Sequence[RenditionSize], seconds: float, by_s: int
) -> None:
    """A script: a command for each section, as many at once as there are cores; audio apart."""

    def section(number: int) -> None:
        where = ["-ss", str(number * by_s), "-t", str(by_s), "-i", str(video)]
        argv = [*QUIET, "-threads", "1", *where, "-filter_complex_threads", "1"]
        argv += ["-filter_complex", _cascade(renditions), *_frames(renditions), "-threads", "1"]
        subprocess.run([*argv, *_hls(folder / str(number), renditions, False)], check=True)

    audio = [*QUIET, "-i", str(video), *_audio(), "-vn", *_hls(folder, [], True)]
    with ThreadPoolExecutor(CORES) as pool:
        work = [pool.submit(subprocess.run, audio, check=True)]
        work += [pool.submit(section, n) for n in range(-int(-seconds // by_s))]
        for one in work:
            one.result()


def decode(video: Path) -> None:
    """Every frame, for nothing."""
    subprocess.run([*QUIET, "-i", str(video), "-map", "0:v", "-f", "null", "-"], check=True)


def ssim(playlist: Path, video: Path, rendition: RenditionSize) -> float:
    """How much the frames of a rendition are like those of the video, scaled to its size."""
    compare = f"[1:v]{rendition.scale}[video];[0:v][video]ssim"
    inputs = ["-i", str(playlist), "-i", str(video), "-lavfi", compare]
    argv = [FFMPEG, "-hide_banner", "-nostdin", *inputs, "-an", "-f", "null", "-"]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    found = _SSIM.search(done.stderr)
    if found is None:
        raise RuntimeError(f"ffmpeg did not tell the SSIM:\n{done.stderr[-1000:]}")
    return float(found[1])


def _cascade(renditions: Sequence[RenditionSize]) -> str:
    """[v0], [v1], …: each scaled from the one before it."""
    graph, before = [], "0:v"
    for n, rendition in enumerate(renditions[:-1]):
        graph.append(f"[{before}]{rendition.scale},split[v{n}][r{n}]")
        before = f"r{n}"
    last = len(renditions) - 1
    return ";".join([*graph, f"[{before}]{renditions[last].scale}[v{last}]"])


def _frames(renditions: Sequence[RenditionSize]) -> list[str]:
    argv = [one for n in range(len(renditions)) for one in ("-map", f"[v{n}]")]
    for n, rendition in enumerate(renditions):
        argv += [
            f"-maxrate:v:{n}",
            f"{rendition.kbps}k",
            f"-bufsize:v:{n}",
            f"{2 * rendition.kbps}k",
        ]
    argv += ["-c:v", "libx264", "-preset", "veryfast", "-crf", "23", "-pix_fmt", "yuv420p"]
    argv += ["-g", "1048576", "-forced-idr", "1", "-x264-params", "scenecut=0:open-gop=0"]
    return [*argv, "-force_key_frames", f"expr:gte(t,n_forced*{SEGMENT_S})"]


def _audio() -> list[str]:
    return ["-map", "0:a", "-c:a", "aac", "-b:a", "128k", "-ac", "2", "-ar", "48000"]


def _hls(folder: Path, renditions: Sequence[RenditionSize], has_sound: bool) -> list[str]:
    group = ",agroup:audio" if has_sound else ""
    tracks = [f"v:{n}{group},name:{rendition.name}" for n, rendition in enumerate(renditions)]
    tracks += ["a:0,agroup:audio,name:audio"] if has_sound else []
    argv = ["-f", "hls", "-hls_time", str(SEGMENT_S), "-hls_playlist_type", "vod"]
    argv += ["-hls_segment_type", "fmp4", "-var_stream_map", " ".join(tracks)]
    argv += ["-hls_fmp4_init_filename", "init.mp4", "-master_pl_name", "master.m3u8"]
    argv += ["-hls_segment_filename", str(folder / "%v" / "seg_%05d.m4s")]
    return [*argv, str(folder / "%v" / "index.m3u8")]
