"""Alerts from a process to a receiver that checks signatures: in order, whatever is killed."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import PIPELINES, Cli, until

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.model import Failure, identity
from intermission.testing.jobs import line_job, submit
from servers.webhook import SECRET, Receiver, receiving

# What `serve` does around its server, without one: so these tests wait for nothing else.
PROCESS = """
import signal
from contextlib import ExitStack
from intermission.services.alerting import alert_services
from intermission.services.supervisor import Supervisor
from intermission.composition.fleet import Fleet
from intermission.composition.uploads import Uploads
from intermission.settings import load_settings
from intermission.telemetry import configure_logging

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
configure_logging("info")
settings = load_settings({}).settings
with (
    ExitStack() as opened,
    Supervisor(alert_services(Fleet(settings), Uploads(settings), opened)).running(),
):
    print("ready", flush=True)
    signal.sigwait({signal.SIGTERM})
"""


class Alerting:
    """A fleet's ledger, and processes that tell of it."""

    def __init__(self, cli: Cli) -> None:
        self.cli = cli
        self.path = cli.folder / "shared" / "ledger.sqlite"
        self.said = cli.folder / "said"
        cli.env |= {
            "INTERMISSION_LEDGER": str(self.path),
            "INTERMISSION_STORE": str(cli.folder / "store"),
            "INTERMISSION_LEASE_TTL_S": "3",
            "INTERMISSION_RENEW_EVERY_S": "1",
            "INTERMISSION_WEBHOOK_SECRET": SECRET,
            "INTERMISSION_WEBHOOK_ALLOW_PRIVATE": "yes",
            "INTERMISSION_WEBHOOK_KINDS": "task.recovered,task.exhausted",
        }

    def start(self, *urls: str, **env: str) -> subprocess.Popen[str]:
        """Returns once everything that happens from now on is told."""
        self.path.parent.mkdir(exist_ok=True)
        with self.said.open("a") as said:
            process = subprocess.Popen(
                [sys.executable, "-c", PROCESS],
                cwd=self.cli.folder,
                env={**self.cli.env, "INTERMISSION_WEBHOOK_URLS": ",".join(urls), **env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        self.cli.started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", self.said.read_text()
        return process

    def stop(self, process: subprocess.Popen[str]) -> None:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0, self.said.read_text()

    def is_told(self) -> bool:
        """Whether it is written down that the last failure was delivered."""
        ledger = SqliteLedger(self.path)
        failed = [event.seq for event in ledger.events() if event.task_id and event.now == "failed"]
        ledger.close()
        cursors = (self.cli.folder / "store" / "alerts").rglob("*.json")
        return max(json.loads(path.read_bytes())["seq"] for path in cursors) >= failed[-1]

    def fail(self, *names: str) -> None:
        """A job of each name, whose task fails for good."""
        ledger = SqliteLedger(self.path)
        for name in names:
            submit(ledger, line_job(key=identity(name)))
            (lease,) = ledger.claim("w", 1, lease_ttl_s=60)
            ledger.fail([Failure(lease.task_id, lease.fence, "E", name, permanent=True)])
        ledger.close()


@pytest.fixture
def alerting(cli: Cli) -> Alerting:
    return Alerting(cli)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def names(receiver: Receiver) -> list[str]:
    """The names of the jobs that were told of, repeats and all."""
    return [one.document["data"]["message"].rpartition(": ")[2] for one in receiver.received]


def received(receiver: Receiver, count: int) -> Callable[[], bool]:
    return lambda: len(receiver.received) >= count


def test_each_failure_is_told_once_and_in_order(alerting: Alerting, receiver: Receiver) -> None:
    first = alerting.start(receiver.url)
    alerting.fail(*"abcd")
    until(received(receiver, 4))
    until(alerting.is_told)
    alerting.stop(first)
    alerting.fail(*"ef")
    second = alerting.start(receiver.url)
    alerting.fail("g")
    until(received(receiver, 7))
    alerting.stop(second)
    assert names(receiver) == list("abcdefg")
    assert len(set(receiver.ids)) == 7
    assert receiver.forged == 0


def test_a_killed_worker_and_a_failed_task_are_told(alerting: Alerting, receiver: Receiver) -> None:
    cli = alerting.cli
    alerting.start(receiver.url)
    cli("submit", f"{PIPELINES}:gated", cli.source("held.txt", "abcd"))
    killed = cli.start("worker")
    cli.wait_for_call("waiting")
    killed.send_signal(signal.SIGKILL)
    cli.start("worker")
    until(received(receiver, 1))
    cli("submit", f"{PIPELINES}:failing", cli.source("failing.txt", "aaXX"))
    until(received(receiver, 2))
    assert receiver.kinds == ["task.recovered", "task.exhausted"]
    data: Any = receiver.received[0].document["data"]
    assert data["subject"]["pipeline"] == "gated"
    key, task = data["subject"]["job"], data["subject"]["task"]
    assert data["remedy"] == f"intermission inspect {key[:10]} '{task}'"
    assert key in cli("inspect", key[:10], task, "--json").out


def test_a_receiver_that_comes_late_gets_everything(alerting: Alerting) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    process = alerting.start(f"http://127.0.0.1:{port}/hook")
    alerting.fail("a", "b")
    until(lambda: "does not take alerts" in alerting.said.read_text())
    with receiving(port) as receiver:
        until(received(receiver, 2))
        alerting.stop(process)
        assert names(receiver) == ["a", "b"]


def test_a_redirect_is_not_followed_and_loses_nothing(
    alerting: Alerting, receiver: Receiver
) -> None:
    receiver.troubles = [(307, {"Location": "/elsewhere"})]
    process = alerting.start(receiver.url)
    alerting.fail("a", "b")
    until(received(receiver, 2))
    alerting.stop(process)
    assert (names(receiver), receiver.refused) == (["a", "b"], 1)
    assert {one.path for one in receiver.received} == {"/hook"}


def test_killed_between_delivery_and_cursor_it_repeats_itself_and_loses_nothing(
    alerting: Alerting, receiver: Receiver
) -> None:
    process = alerting.start(receiver.url)
    for kill in range(3):
        # The receiver has the message, and the sender will never know.
        receiver.before_answer = process.kill
        alerting.fail(f"{kill}x", f"{kill}y")
        process.wait(20)
        receiver.before_answer = lambda: None
        process = alerting.start(receiver.url)
        until(received(receiver, 3 * (kill + 1)))
    alerting.stop(process)
    assert names(receiver) == ["0x", "0x", "0y", "1x", "1x", "1y", "2x", "2x", "2y"]
    assert len(set(receiver.ids)) == 6, "a repeat has the id of the first"


def test_two_receivers_do_not_wait_for_each_other(alerting: Alerting, receiver: Receiver) -> None:
    with receiving() as other:
        other.troubles = [(503, {"Retry-After": "3600"})]
        process = alerting.start(other.url, receiver.url)
        alerting.fail("a", "b")
        until(received(receiver, 2))
        assert other.received == []
        alerting.stop(process)
        process = alerting.start(other.url, receiver.url)
        until(received(other, 2))
        alerting.stop(process)
        assert names(other) == names(receiver) == ["a", "b"]
        assert other.ids == receiver.ids


def test_private_addresses_get_nothing_unless_they_are_allowed(
    alerting: Alerting, receiver: Receiver
) -> None:
    secret_path = f"http://127.0.0.1:{receiver.port}/T0/B0/abcdef"
    process = alerting.start(secret_path, INTERMISSION_WEBHOOK_ALLOW_PRIVATE="no")
    alerting.fail("a")
    until(lambda: "webhook_allow_private" in alerting.said.read_text())
    alerting.stop(process)
    assert (receiver.received, receiver.forged) == ([], 0)
    said = alerting.said.read_text()
    assert "127.0.0.1 is not a public address" in said
    assert "abcdef" not in said
    assert SECRET not in said


def test_a_url_without_a_secret_is_refused_at_the_start(cli: Cli, tmp_path: Path) -> None:
    env = {
        **cli.env,
        "INTERMISSION_LEDGER": str(tmp_path / "ledger.sqlite"),
        "INTERMISSION_WEBHOOK_URLS": "https://hooks.example/x",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROCESS],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode != 0
    assert "UsageError" in done.stderr
    assert "openssl rand" in done.stderr
