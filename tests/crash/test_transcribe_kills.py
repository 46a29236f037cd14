"""A transcription that is killed again and again: the same bytes, no chunk transcribed twice."""

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
from intermission.backends.store.local import LocalStore
from intermission.backends.store.objects import ObjectStore
from intermission.ports.store import Store
from servers.seaweed import S3Server
from servers.speech import KEY, SpeechServer, serving

KILLS = 10
TIMEOUT_S = 400


@pytest.fixture(scope="module")
def server() -> Iterator[SpeechServer]:
    with serving() as running:
        yield running


class Location:
    """A folder, or a bucket with a folder for the machine that works on it."""

    def __init__(self, folder: Path, s3: S3Server | None) -> None:
        folder.mkdir()
        self.folder = folder
        self.env = {"XDG_CACHE_HOME": str(folder / "cache")}
        if s3 is None:
            shutil.copy(samples.talk(), folder / "talk.mp4")
            self.source = "talk.mp4"
            self.work: Store = LocalStore(folder / ".intermission" / "talk.mp4")
            self.made: Store = LocalStore(folder / "transcripts" / "talk")
            return
        bucket = f"s3://kills-{os.urandom(4).hex()}"
        self.source = f"{bucket}/talk.mp4"
        ObjectStore(bucket, options=s3.options).create("talk.mp4", samples.talk())
        self.work = ObjectStore(f"{bucket}/checkpoints/talk.mp4", options=s3.options)
        self.made = ObjectStore(f"{bucket}/transcripts/talk", options=s3.options)
        self.env |= s3.environment

    def outputs(self) -> dict[str, bytes]:
        """Everything for people; the source's fingerprint differs between storages."""
        return {stat.key: self.made.read(stat.key) for stat in self.made.list("")}

    def heard(self) -> set[str]:
        """The keys of the chunks that have a receipt."""
        receipts = [self.work.read(stat.key) for stat in self.work.list("receipts/transcribe/")]
        return {json.loads(data)["task_key"] for data in receipts}


def start(place: Location, server: SpeechServer) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        **place.env,
        "INTERMISSION_SPEECH_URL": server.url,
        "INTERMISSION_SPEECH_API_KEY": KEY,
        "INTERMISSION_SLOTS": "2",
    }
    options = ["--engine", "http", "--model", "tiny.en", "--chunk-seconds", "8"]
    command = [sys.executable, "-m", "intermission", "run", "transcribe", place.source, *options]
    return subprocess.Popen(
        command, cwd=place.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_killed_at_random_points(
    server: SpeechServer, tmp_path: Path, where: str, request: pytest.FixtureRequest
) -> None:
    s3: S3Server | None = request.getfixturevalue("s3") if where == "bucket" else None
    undisturbed, killed = Location(tmp_path / "undisturbed", s3), Location(tmp_path / "killed", s3)
    out, _ = start(undisturbed, server).communicate(timeout=TIMEOUT_S)
    wanted = undisturbed.outputs()
    assert len(wanted) == 5 + len(undisturbed.heard()), out.decode()

    rng = random.Random(7)
    for _ in range(KILLS):
        before, done = dict(server.calls), killed.heard()
        process = start(killed, server)
        try:
            process.wait(timeout=rng.uniform(0.3, 2.5))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=TIMEOUT_S)
        again = {key for key in done if server.calls[key] > before.get(key, 0)}
        assert not again, f"heard again: {again}"
    before, done = dict(server.calls), killed.heard()
    for _ in range(2):
        process = start(killed, server)
        out, _ = process.communicate(timeout=TIMEOUT_S)
        # A task that so many workers vanished with is given up; the next run tries it again.
        if process.returncode == 0 or b"vanished" not in out:
            break
    assert process.returncode == 0, out.decode()
    assert all(server.calls[key] == before[key] for key in done)
    assert killed.outputs() == wanted
