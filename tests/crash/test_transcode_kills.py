"""A video that is transcoded and killed again and again: the same bytes, nothing encoded twice.

`TRANSCODE_KILLS` says how often; the suite has time for a few.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import media_samples
import video_samples
from transcoding import REF

KILLS = int(os.environ.get("TRANSCODE_KILLS", "6"))
SLOTS = 2
RENDITIONS = 2
TIMEOUT_S = 400


def start(folder: Path, ladder: str = "120p,90p", **environ: str) -> subprocess.Popen[bytes]:
    options = ["--ladder", ladder, "--segment-seconds", "1", "--chunk-seconds", "1"]
    command = [sys.executable, "-m", "intermission", "run", REF, "video.mp4", *options]
    environment = {
        **os.environ,
        "BEGUN": str(folder / "begun"),
        "INTERMISSION_SLOTS": str(SLOTS),
        "INTERMISSION_RETRY_DELAYS_S": "0",
        **environ,
    }
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def begun(folder: Path) -> Counter[str]:
    path = folder / "begun"
    return Counter(path.read_text().splitlines()) if path.exists() else Counter[str]()


def finished(folder: Path) -> set[str]:
    """The sections and heights that have a receipt."""
    chunks = [
        json.loads(json.loads(path.read_text())["chunk"])
        for path in folder.glob(".intermission/video.mp4/receipts/encode/*.json")
    ]
    return {f"{chunk['first']} {chunk['height']}" for chunk in chunks}


def outputs(folder: Path) -> dict[str, bytes]:
    root = folder / "videos"
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def test_killed_at_random_points(tmp_path: Path) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for folder in (undisturbed, killed):
        folder.mkdir()
    video = media_samples.make(undisturbed / "video.mp4", seconds=10, size=(160, 120))
    (killed / "video.mp4").write_bytes(video.read_bytes())
    out, _ = start(undisturbed).communicate(timeout=TIMEOUT_S)
    wanted = outputs(undisturbed)
    assert begun(undisturbed).total() == len(finished(undisturbed)) == 10 * RENDITIONS, out.decode()

    rng = random.Random(11)
    interrupted = 0
    for _ in range(KILLS):
        before, done = begun(killed), finished(killed)
        process = start(killed)
        try:
            process.wait(timeout=rng.uniform(0.8, 2.6))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            interrupted += 1
        process.communicate(timeout=TIMEOUT_S)
        assert not done & set(begun(killed) - before), "encoded again"
    for _ in range(2):
        process = start(killed)
        out, _ = process.communicate(timeout=TIMEOUT_S)
        # A task that so many workers died over is given up once; the next run tries it again.
        if process.returncode == 0:
            break
    assert process.returncode == 0, out.decode()
    assert interrupted, "nothing was killed: shorten the times"
    again = begun(killed).total() - len(begun(killed))
    assert again <= interrupted * SLOTS * RENDITIONS
    assert outputs(killed) == wanted


def detail(number: int, size: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Frames that look otherwise when they are scaled in another way."""
    return np.random.default_rng(number).integers(40, 200, size[::-1]).astype(np.uint8)


def segments(folder: Path, rendition: str) -> dict[str, bytes]:
    found = {name: data for name, data in outputs(folder).items() if f"/{rendition}/seg_" in name}
    return {name.rpartition("/")[2]: data for name, data in found.items()}


def test_a_rendition_has_the_same_bytes_alone_together_and_added_later(tmp_path: Path) -> None:
    """Added later also means: after a run that made a part of it alone was killed."""
    folders = {name: tmp_path / name for name in ("together", "alone", "added", "killed")}
    video = video_samples.video(tmp_path / "video.mp4", count=100, size=(160, 120), draw=detail)
    for folder in folders.values():
        folder.mkdir()
        (folder / "video.mp4").write_bytes(video.read_bytes())

    def run(name: str, ladder: str) -> None:
        process = start(folders[name], ladder)
        out, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, out.decode()

    run("together", "120p,90p,60p")
    run("alone", "60p")
    run("added", "90p")
    run("added", "120p,90p,60p")

    gates = tmp_path / "gates"
    gates.mkdir()
    for number in (0, 2):
        (gates / str(number)).touch()
    process = start(folders["killed"], "60p", GATES=str(gates), INTERMISSION_SLOTS="4")
    deadline = time.monotonic() + TIMEOUT_S
    while not finished(folders["killed"]) >= {"0 60", "2 60"}:
        assert time.monotonic() < deadline, "the sections were not encoded"
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=TIMEOUT_S)
    assert finished(folders["killed"]) == {"0 60", "2 60"}
    run("killed", "120p,90p,60p")

    for rendition in ("120p", "90p", "60p"):
        wanted = segments(folders["together"], rendition)
        assert len(wanted) == 4
        assert segments(folders["added"], rendition) == wanted
        assert segments(folders["killed"], rendition) == wanted
    assert segments(folders["alone"], "60p") == segments(folders["together"], "60p")
