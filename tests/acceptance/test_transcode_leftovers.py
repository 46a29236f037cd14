"""What a failed way of transcoding left beside the one that is played, and what becomes of it."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from command_line import Cli, until

import media_samples
from transcoding import REF

LADDER = ("--ladder", "60p", "--segment-seconds", "1", "--chunk-seconds", "2")
TALLER = ("--ladder", "90p,60p", "--segment-seconds", "1", "--chunk-seconds", "2", "--crf", "30")
SHORT = {"INTERMISSION_LEASE_TTL_S": "1", "INTERMISSION_RENEW_EVERY_S": "0.3"}
"""For those who collect: the grace must not be shorter than a lease."""


@pytest.fixture
def video(cli: Cli) -> Path:
    return media_samples.make(cli.folder / "video.mp4", seconds=4, size=(120, 90))


def videos(cli: Cli) -> Path:
    return cli.folder / "videos" / "video"


def played(cli: Cli) -> dict[str, int]:
    """By the folder that the front leads to: how many segments are there."""
    found: dict[str, int] = {}
    front = (videos(cli) / "master.m3u8").read_text()
    for name in re.findall(r"^[^#\n]+$", front, re.MULTILINE):
        playlist = videos(cli) / name
        parts = re.findall(r"^[^#\n]+$", playlist.read_text(), re.MULTILINE)
        assert all((playlist.parent / part).stat().st_size for part in ("init.mp4", *parts))
        found[name.removesuffix("/index.m3u8")] = len(parts)
    return found


def staged(cli: Cli, job: str) -> list[Path]:
    return [path for path in (videos(cli) / job[:10]).rglob("*") if path.is_file()]


def failed_job(cli: Cli) -> str:
    (job,) = [row["job"] for row in cli("ls", "--json").json["jobs"] if row["state"] == "failed"]
    return job


def collect(cli: Cli, job: str) -> None:
    """Pass after pass, until the grace is over."""
    assert staged(cli, job)

    def is_gone() -> bool:
        cli("gc", ".", "--grace-s", "1", env=SHORT)
        return not staged(cli, job)

    until(is_gone)


def test_it_is_collected_and_the_old_one_plays(cli: Cli, video: Path) -> None:
    cli("run", REF, video, *LADDER)
    cli("run", REF, video, *TALLER, code=1, env={"BROKEN": "90"})
    job = failed_job(cli)
    assert videos(cli) / job[:10] / "60p" / "index.m3u8" in staged(cli, job)
    collect(cli, job)
    assert played(cli) == {"60p": 4}
    assert failed_job(cli) == job, "it can be looked at"
    cli("run", REF, video, *TALLER)  # and goes on where it stopped
    events = cli("watch", job[:10], "--jsonl", "--after", "0").events
    assert "its outputs were collected" in {event.get("message") for event in events}
    assert played(cli) == {f"{job[:10]}/90p": 4, f"{job[:10]}/60p": 4}
    cli("gc", ".", "--grace-s", "1", env=SHORT)
    assert played(cli) == {f"{job[:10]}/90p": 4, f"{job[:10]}/60p": 4}


def test_workers_put_it_back_when_it_is_tried_again(cli: Cli, video: Path) -> None:
    cli.env |= {"INTERMISSION_LEDGER": str(cli.folder / "shared.sqlite")}
    work(cli, *LADDER)
    work(cli, *TALLER, BROKEN="90")
    job = failed_job(cli)
    collect(cli, job)
    assert played(cli) == {"60p": 4}
    cli("retry", job[:10])
    until_ended(cli)
    assert played(cli) == {f"{job[:10]}/90p": 4, f"{job[:10]}/60p": 4}


def work(cli: Cli, *how: str, **env: str) -> None:
    cli("submit", REF, "video.mp4", *how)
    until_ended(cli, **env)


def until_ended(cli: Cli, **env: str) -> None:
    """A worker, as long as there is something to do."""
    worker = cli.start("worker", "--pipeline", REF, env=env)
    until(
        lambda: all(row["state"] in ("done", "failed") for row in cli("ls", "--json").json["jobs"])
    )
    worker.send_signal(signal.SIGTERM)
    assert cli.end(worker).code == 0
