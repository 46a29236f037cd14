"""Workers beside a Redis that comes and goes: what they publish, and how they are woken."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis
from command_line import PIPELINES, Cli, until

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.backends.progress_publisher import KEYS
from intermission.model import Event
from servers.valkey import ValkeyServer

POLL_S = 2.0
"""Twice the usual: a busy machine must not make the difference."""
NEVER_S = 3600.0
"""Between two looks of a worker that is meant to be woken."""


@pytest.fixture
def server(valkey_server: Callable[[], ValkeyServer]) -> ValkeyServer:
    return valkey_server()


@pytest.fixture
def fleet(cli: Cli, server: ValkeyServer) -> Cli:
    (cli.folder / "shared").mkdir()
    cli.env |= {
        "INTERMISSION_LEDGER": str(cli.folder / "shared/ledger.sqlite"),
        "INTERMISSION_REDIS_URL": server.url,
        "INTERMISSION_RENEW_EVERY_S": "1",
        "INTERMISSION_SLOTS": "1",
    }
    return cli


def submit(cli: Cli, pipeline: str, source: Path) -> str:
    return cli("submit", f"{PIPELINES}:{pipeline}", source).out.strip()


def events(cli: Cli, key: str) -> list[Event]:
    with closing(SqliteLedger(Path(cli.env["INTERMISSION_LEDGER"]))) as ledger:
        return [event for event in ledger.events(limit=10_000) if event.job_key == key]


def is_done(cli: Cli, key: str) -> Callable[[], bool]:
    return lambda: any(e.task_id is None and e.now == "done" for e in events(cli, key))


class Channel:
    """What is published of all jobs, as it comes."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, protocol=2)
        self._pubsub = self._client.pubsub(ignore_subscribe_messages=True)
        self._pubsub.psubscribe("intermission:progress:*")
        self.heard: list[dict[str, Any]] = []

    def until(self, **fields: Any) -> dict[str, Any]:
        """The first message with these fields."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            self.drain()
            found[:] = [one for one in self.heard if fields.items() <= one.items()]
            return bool(found)

        until(look)
        return found[0]

    def until_published(self) -> None:
        """Somebody publishes by now: the first begins with what is new then."""
        until(lambda: self._client.keys(f"{KEYS}*:position"))

    def drain(self) -> None:
        """Take everything that has come by now."""
        while (message := self._pubsub.get_message(timeout=0)) is not None:
            told = json.loads(message["data"])
            assert message["channel"].decode() == f"intermission:progress:{told['job']}"
            self.heard.append(told)

    def close(self) -> None:
        self._pubsub.close()
        self._client.close()


@pytest.fixture
def channel(server: ValkeyServer) -> Iterator[Channel]:
    with closing(Channel(server.url)) as channel:
        yield channel


def test_progress_is_published_and_logged(fleet: Cli, channel: Channel) -> None:
    worker = fleet.start("worker")
    channel.until_published()
    key = submit(fleet, "climbing", fleet.source())
    channel.until(event="task", job=key, now="leased")
    progress = channel.until(event="progress", job=key)
    assert (progress["task"], progress["progress"]) == ("climb", 0.25)
    until(lambda: [event for event in events(fleet, key) if event.progress])
    fleet.open_gate()
    done = channel.until(event="task", job=key, now="done")
    channel.until(event="job", job=key, now="done")
    worker.send_signal(signal.SIGTERM)
    assert "Redis" not in fleet.end(worker).err

    lines = fleet("watch", key, "--after", "0", "--jsonl").events
    (logged,) = [line for line in lines if line["event"] == "progress"]
    assert logged.keys() == progress.keys() == done.keys()
    assert progress == logged
    assert "climb  running 25%" in fleet("watch", key, "--after", "0").out


def test_each_event_is_published_once_whoever_works(fleet: Cli, channel: Channel) -> None:
    workers = [fleet.start("worker") for _ in range(3)]
    channel.until_published()
    keys = [submit(fleet, "letters", fleet.source(f"{n}.txt", f"{n}abcdefghijk")) for n in range(3)]
    for key in keys:
        channel.until(event="job", job=key, now="done")
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
        fleet.end(worker)
    channel.drain()
    for key in keys:
        states = [
            one["now"] for one in channel.heard if one["job"] == key and one["event"] == "job"
        ]
        assert len(states) == len(set(states)), "a state was published twice"
        assert states[-2:] == ["running", "done"]
        told = [
            (one["task"], one["now"], one["fence"]) for one in channel.heard if one["job"] == key
        ]
        assert len(told) == len(set(told))


def test_progress_of_a_worker_behind_a_server_is_published(
    cli: Cli, server: ValkeyServer, channel: Channel
) -> None:
    """The worker reaches nothing but its server, which tells what the event log says of it."""
    served = {"INTERMISSION_LEDGER": str(cli.folder / "ledger.sqlite")}
    served |= {
        "INTERMISSION_REDIS_URL": server.url,
        "INTERMISSION_ADMIN_SECRET": "a-secret-of-tests",
    }
    process = cli.start("serve", "--port", 0, "--pipeline", f"{PIPELINES}:climbing", env=served)
    assert process.stderr is not None
    cli.env |= {
        "INTERMISSION_SERVER": process.stderr.readline().split()[-1],
        "INTERMISSION_ADMIN_SECRET": served["INTERMISSION_ADMIN_SECRET"],
        "INTERMISSION_RENEW_EVERY_S": "1",
    }
    worker_key = cli("register", "distant").out.strip()
    env = {"INTERMISSION_SERVER_KEY": worker_key, "INTERMISSION_ADMIN_SECRET": ""}
    cli.start("worker", env={**env, "INTERMISSION_CACHE_DIR": str(cli.folder / "distant")})
    channel.until_published()
    key = submit(cli, "climbing", cli.source())
    channel.until(event="job", job=key, now="running")
    channel.until(event="task", job=key, now="leased")
    told = channel.until(event="progress", job=key)
    assert (told["task"], told["progress"]) == ("climb", 0.25)
    cli.open_gate()
    channel.until(event="task", job=key, now="done")
    channel.until(event="job", job=key, now="done")


def test_a_job_does_not_notice_that_redis_is_gone(
    fleet: Cli, server: ValkeyServer, channel: Channel
) -> None:
    worker = fleet.start("worker")
    channel.until_published()
    first = submit(fleet, "climbing", fleet.source())
    channel.until(event="progress", job=first)
    server.kill()
    fleet.open_gate()
    until(is_done(fleet, first))
    second = submit(fleet, "letters", fleet.source("b.txt", "abcdefghijklmnopqrstuvwxyz"))
    until(is_done(fleet, second))
    worker.send_signal(signal.SIGTERM)
    said = fleet.end(worker).err
    assert said.count("publishing progress to Redis failed") == 1
    ends = [event.at_ms for event in events(fleet, second)]
    assert ends[-1] - ends[1] < 5000, "nothing waited for it"


KNOBS = """
import sys
from intermission.backends.notifier.redis import RedisNotifier
from intermission.cli import main
from intermission.backends.work_source import shared_jobs
shared_jobs.POLL_S = float(sys.argv.pop(1))
RedisNotifier.__init__.__kwdefaults__["pause_max_s"] = 0.2
main()
"""
"""A worker that asks as often as it is told, and soon tries a server again that was away."""


def start_worker(cli: Cli, poll_s: float) -> tuple[subprocess.Popen[bytes], Callable[[], str]]:
    """The process, and what it has said so far."""
    log = cli.folder / f"worker-{poll_s:g}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", KNOBS, str(poll_s), "worker", "--verbose"],
            cwd=cli.folder,
            env=cli.env,
            stdin=subprocess.DEVNULL,
            stderr=file,
        )
    return process, lambda: log.read_text(errors="replace")


def waited_s(cli: Cli, key: str) -> float:
    """From the submission of a job to the claim of its first task."""
    until(lambda: [event for event in events(cli, key) if event.now == "leased"])
    came, *changes = events(cli, key)
    return next((e.at_ms - came.at_ms) / 1000 for e in changes if e.now == "leased")


def test_workers_poll_while_redis_is_away_and_are_woken_when_it_is_back(
    fleet: Cli, server: ValkeyServer
) -> None:
    fleet.env["INTERMISSION_NOTIFIERS"] = "redis"
    usual, said = start_worker(fleet, POLL_S)
    woken, woken_said = start_worker(fleet, NEVER_S)
    try:
        until(lambda: all("is at work" in tell() for tell in (said, woken_said)))
        server.kill()
        until(lambda: all("listening to Redis failed" in t() for t in (said, woken_said)))
        key = submit(fleet, "letters", fleet.source("down.txt", "ab"))
        assert waited_s(fleet, key) < 2 * POLL_S
        until(is_done(fleet, key))
        usual.send_signal(signal.SIGTERM)
        assert usual.wait(60) == 0

        server.start()
        until(lambda: "listening to Redis works again" in woken_said())
        key = submit(fleet, "letters", fleet.source("back.txt", "cd"))
        assert waited_s(fleet, key) < POLL_S, "its next look is an hour away"
        until(is_done(fleet, key))
        woken.send_signal(signal.SIGTERM)
        assert woken.wait(60) == 0
    finally:
        for process in (usual, woken):
            process.kill()
            process.wait()
