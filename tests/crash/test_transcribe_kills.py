"""A transcription that is killed again and again: the same bytes, and no span heard twice."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import samples
from servers.speech import KEY, SpeechServer, serving

KILLS = 10
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def server() -> Iterator[SpeechServer]:
    with serving() as running:
        yield running


def start(folder: Path, server: SpeechServer) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "INTERMISSION_SPEECH_URL": server.url,
        "INTERMISSION_SPEECH_API_KEY": KEY,
        "INTERMISSION_SLOTS": "2",
    }
    options = ["--engine", "http", "--model", "tiny.en", "--chunk-seconds", "8"]
    command = [sys.executable, "-m", "intermission", "run", "transcribe", "talk.mp4", *options]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def outputs(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.glob("transcripts/**/*"))
        if path.is_file()
    }


def heard(folder: Path) -> set[str]:
    """The keys of the spans that have a receipt."""
    receipts = folder.glob(".intermission/talk.mp4/receipts/hear/*.json")
    return {json.loads(path.read_text())["task_key"] for path in receipts}


def test_killed_at_random_points(server: SpeechServer, tmp_path: Path) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for folder in (undisturbed, killed):
        folder.mkdir()
        shutil.copy(samples.talk(), folder / "talk.mp4")
    out, _ = start(undisturbed, server).communicate(timeout=TIMEOUT_S)
    wanted = outputs(undisturbed)
    assert len(wanted) == 5 + len(heard(undisturbed)), out.decode()

    rng = random.Random(7)
    for _ in range(KILLS):
        before, done = dict(server.calls), heard(killed)
        process = start(killed, server)
        try:
            process.wait(timeout=rng.uniform(0.3, 2.5))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=TIMEOUT_S)
        again = {key for key in done if server.calls[key] > before.get(key, 0)}
        assert not again, f"heard again: {again}"
    before, done = dict(server.calls), heard(killed)
    process = start(killed, server)
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, out.decode()
    assert all(server.calls[key] == before[key] for key in done)
    assert outputs(killed) == wanted
