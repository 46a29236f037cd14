"""What an operator does to a fleet, on its ledger or on its server alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from intermission.backends.http.registration import heartbeat
from intermission.cli import app as commands
from intermission.composition.fleet import Fleet
from intermission.composition.registries import open_registry
from intermission.errors import LedgerRefused
from intermission.model import Failure, JobState, Limit, identity
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
        submit(fleet.ledger, line_job(key=key))
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
