"""What an operator does to a fleet, on its ledger or on its server alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from intermission.backends.executor.slot import log_name
from intermission.backends.http.registration import heartbeat
from intermission.cli import app as commands
from intermission.composition.fleet import Fleet
from intermission.composition.registries import open_registry
from intermission.errors import LedgerRefused
from intermission.model import Failure, JobState, Limit, Source, canonical, identity
from intermission.settings import Settings
from intermission.testing.jobs import line_job, submit
from intermission.web.app import create_app
from servers.worker_api import listening

SECRET = "swordfish"
KEYS = [identity("first"), identity("second")]

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operated")


@pytest.fixture(scope="module")
def fleet(folder: Path) -> Fleet:
    settings = Settings(
        ledger=str(folder / "ledger.sqlite"),
        store=str(folder / "store"),
        admin_secret=SecretStr(SECRET),
    )
    fleet = Fleet(settings)
    for key in KEYS:
        source = Source((folder / f"{key}.mp4").as_uri(), key, 1)
        submit(fleet.ledger, replace(line_job(key=key), source=source))
    return fleet


@pytest.fixture(scope="module")
def server(fleet: Fleet) -> Iterator[str]:
    with (
        closing(open_registry(fleet.settings)) as registry,
        listening(create_app(fleet, registry)) as url,
    ):
        yield url


@pytest.fixture(params=["--ledger", "--server"])
def command(
    request: pytest.FixtureRequest,
    fleet: Fleet,
    server: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Command:
    """Runs a command on the ledger or on the server; what it printed, as JSON where it is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INTERMISSION_ADMIN_SECRET", SECRET)
    where = [request.param, server if request.param == "--server" else str(fleet.settings.ledger)]

    def run(*words: str, code: int = 0) -> Any:
        done = CliRunner().invoke(commands, [*words, *where])
        assert done.exit_code == code, done.output
        return json.loads(done.stdout) if "--json" in words else done.output

    return run


def test_limits_and_pauses(command: Command, fleet: Fleet) -> None:
    command("limit", "pipeline:pipeline", "--running", "2")
    command("limit", "label:gpu", "--per-minute", "1.5")
    shown = command("limit", "--json")["limits"]
    assert [(one["name"], one["running"], one["per_minute"]) for one in shown] == [
        ("label:gpu", None, 1.5),
        ("pipeline:pipeline", 2, None),
    ]
    assert "goes on" not in command("pause", KEYS[0][:10])
    assert Limit(f"job:{KEYS[0]}", paused=True) in fleet.ledger.limits()
    command("limit", "pipeline:pipeline", "--none")
    command("limit", "label:gpu", "--none")
    assert "goes on" in command("resume", f"job:{KEYS[0][:10]}")
    assert command("limit", "--json")["limits"] == []
    assert "no job has" in command("pause", "nobody", code=2)


def test_what_holds_a_task_back_is_told(command: Command) -> None:
    command("pause", "pipeline:pipeline")
    step = next(iter(command("status", "--json", KEYS[0])["steps"]))
    assert f"{step} waits because pipeline:pipeline is paused" in command("why", KEYS[0], step)
    assert "waits: pipeline:pipeline is paused" in command("status", KEYS[0])
    (wait,) = command("status", "--json", KEYS[0])["waiting"]
    assert (wait["code"], wait["steps"]) == ("paused", [step])
    assert command("why", "--json", KEYS[0], step)["waiting"] == [wait]
    command("resume", "pipeline:pipeline")
    assert "paused" not in command("status", KEYS[0])


def test_long_parameters_are_shown_by_inspect_alone(command: Command, fleet: Fleet) -> None:
    key, text = identity("subtitled"), "WEBVTT " * 10_000
    source = Source((Path("/") / f"{key}.mp4").as_uri(), key, 1)
    params = canonical({"subtitles": {"en": text}, "height": 720})
    submit(fleet.ledger, replace(line_job(key=key), source=source, params=params))
    try:
        (listed,) = [one for one in command("ls", "--json")["jobs"] if one["job"] == key]
        told = {"elided_bytes": len(canonical({"en": text}))}
        assert listed["params"] == {"subtitles": told, "height": 720}
        assert command("status", "--json", key)["params"] == listed["params"]
        assert command("inspect", "--json", key)["params"]["subtitles"] == {"en": text}
    finally:
        fleet.ledger.delete(key)


def test_jobs_are_listed_as_asked(command: Command, fleet: Fleet) -> None:
    def listed(*options: str) -> list[str]:
        return [job["job"] for job in command("ls", "--json", *options)["jobs"]]

    assert listed() == KEYS[::-1]
    assert listed("--limit", "1") == KEYS[1:]
    assert listed("--state", "pending", "--state", "done") == KEYS[::-1]
    assert listed("--state", "done") == []
    assert listed("--pipeline", "nothing") == []
    assert "there is no state" in command("ls", "--state", "broken", code=2)
    assert command("status", "--json", KEYS[0][:10])["job"] == KEYS[0]


def test_failures_are_grouped_and_put_back(command: Command, fleet: Fleet) -> None:
    for lease in fleet.ledger.claim("w", 10, lease_ttl_s=60):
        fleet.ledger.fail([Failure(lease.task_id, lease.fence, "TimedOut", "too slow", True)])
    (group,) = command("failures", "--json")["failures"]
    assert (group["error"], group["count"], group["jobs"]) == ("TimedOut", 2, KEYS[::-1])
    # And, of each job, what was cancelled because of it.
    assert "4 tasks put back" in command("failures", "--error", "TimedOut", "--retry")
    assert command("failures", "--json")["failures"] == []
    assert {row.state for row in fleet.ledger.jobs()} == {JobState.RUNNING}


def test_a_job_is_looked_at_in_every_way(command: Command, fleet: Fleet) -> None:
    key = KEYS[0]
    (row,) = [row for row in fleet.ledger.tasks(key) if row.name == "pack"]
    (found,) = fleet.ledger.jobs(key)
    folder = fleet.workspace(found.job).folder
    name = log_name("pack", row.key, 2)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("what it wrote\n")
    shown = command("inspect", key[:10], "--json")
    assert (shown["job"], [task["task"] for task in shown["tasks"]]) == (key, ["fetch", "pack"])
    assert command("inspect", key[:10], "--state", "done", "--json")["tasks"] == []
    assert "pack   blocked" in command("inspect", key[:10])
    details = command("inspect", key[:10], "pack", "--json")
    assert (details["task"], details["receipt"], [*details["logs"]]) == ("pack", None, ["2"])
    assert "waits for fetch" in command("inspect", key[:10], "pack")
    why = command("why", key[:10], "pack", "--json")
    assert (why["task"], why["state"]) == ("pack", "blocked")
    assert why["why"].startswith("waits for fetch; fetch waits because no worker is registered")
    assert "no task is named 'nothing'" in command("why", key[:10], "nothing", code=2)
    log = command("logs", key[:10], "pack", "--json")
    assert (log["attempt"], log["text"]) == (2, "what it wrote\n")
    assert "what it wrote" in command("logs", key[:10], "pack")
    assert "no log of attempt 7" in command("logs", key[:10], "pack", "--attempt", "7", code=2)
    assert "as worker w" in command("logs", key[:10], "fetch")


def test_a_log_on_another_machine_is_not_told_as_empty(command: Command, fleet: Fleet) -> None:
    key, worker = KEYS[0], "far-box-77-0a1b2c3d"
    (lease,) = fleet.ledger.claim(worker, 1, lease_ttl_s=60.0, jobs=[key])
    fleet.ledger.fail([Failure(lease.task_id, lease.fence, "Broken", "no")])
    log = command("logs", key[:10], lease.step, "--json")
    assert (log["attempt"], log["text"], log["elsewhere"]) == (None, "", worker)
    said = command("logs", key[:10], lease.step)
    assert f"{lease.step} ran on another machine, as worker {worker}" in said


def test_a_job_is_cancelled_watched_and_retried(command: Command, fleet: Fleet) -> None:
    key = KEYS[0]
    for words in (("cancel", key[:10]), ("cancel", key[:10])):
        assert "is cancelled" in command(*words)
    told = [json.loads(line) for line in command("watch", key, "--jsonl", code=1).splitlines()]
    assert [one["event"] for one in told] == ["watching", "ended"]
    whole = command("watch", key, "--after", "0", code=1)
    assert "pack  cancelled" in whole
    assert "2 tasks put back" in command("retry", key[:10])
    assert fleet.ledger.jobs(key)[0].state is not JobState.CANCELLED
    assert "no task is named" in command("retry", key[:10], "--task", "nothing", code=2)


def test_what_ended_long_ago_is_forgotten(command: Command, fleet: Fleet) -> None:
    made = submit(fleet.ledger, line_job(key=identity("third")))
    command("cancel", made.key)
    assert "is no age" in command("prune", "--older-than", "x", code=2)
    assert command("prune", "--older-than", "1d", "--json")["jobs"] == []
    old = command("prune", "--older-than", "0", "--dry-run", "--json")["jobs"]
    assert [(one["job"], one["state"]) for one in old] == [(made.key, "cancelled")]
    assert command("prune", "--older-than", "0", "--state", "done", "--json")["jobs"] == []
    assert "forgot 1 job" in command("prune", "--older-than", "0", "--pipeline", "pipeline")
    assert [row.job.key for row in fleet.ledger.jobs()] == KEYS[::-1]


def test_a_limit_that_is_removed_leaves_a_pause(command: Command, fleet: Fleet) -> None:
    command("limit", "pipeline:p", "--running", "2")
    command("pause", "pipeline:p")
    command("limit", "pipeline:p", "--none")
    assert fleet.ledger.limits() == [Limit("pipeline:p", paused=True)]
    command("resume", "pipeline:p")
    assert fleet.ledger.limits() == []


def test_workers_are_listed_and_their_keys_rotated_and_revoked(
    command: Command, fleet: Fleet, server: str
) -> None:
    with closing(open_registry(fleet.settings)) as registry:
        before = {row.id for row in registry.workers()}
        CliRunner().invoke(commands, ["register", "box", "--server", server, "--can", "gpu"])
        (id,) = {row.id for row in registry.workers()} - before

    def state() -> str:
        (one,) = (one for one in command("workers", "--json")["workers"] if one["id"] == id)
        assert (one["name"], one["can"]) == ("box", ["gpu"])
        return one["state"]

    assert state() == "offline"
    said = command("workers", "--rotate", id).split()
    (key,) = (word for word in said if word.startswith("imw_"))
    heartbeat(server, key, slots=2, busy=1)
    assert state() == "active"
    again = command("workers", "--rotate", id, "--keep-s", "60", "--json")["key"]
    heartbeat(server, key, slots=2, busy=2)
    heartbeat(server, again, slots=2, busy=2)
    rows = [line.split()[:3] for line in command("workers").splitlines()]
    assert [id, "busy", "2/2"] in rows
    assert "disabled" in command("workers", "--revoke", id)
    assert state() == "disabled"
    with pytest.raises(LedgerRefused, match="revoked"):
        heartbeat(server, again, slots=2, busy=2)
    for option in ("--rotate", "--revoke"):
        assert "there is no worker nobody" in command("workers", option, "nobody", code=2)
    assert "--rotate" in command("workers", "--keep-s", "5", code=2)
