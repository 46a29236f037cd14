"""`intermission finish`: a deferred task ends with what came from outside, wherever it waits."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from command_line import PIPELINES, Cli, in_sentence, until


@pytest.fixture
def fleet(cli: Cli) -> Cli:
    cli.env["INTERMISSION_LEDGER"] = str(cli.folder / "shared" / "ledger.sqlite")
    return cli


def receipts(cli: Cli, source: Path) -> list[Any]:
    found = cli.workspace(source).glob("receipts/outside/*.json")
    return [json.loads(path.read_text()) for path in found]


def states(cli: Cli) -> set[str]:
    return {job["state"] for job in cli("ls", "--json").json["jobs"]}


def deferred_jobs(cli: Cli, *sources: Path) -> None:
    """Leave a deferred task of each source in the shared ledger."""
    for source in sources:
        cli("submit", f"{PIPELINES}:deferred", source)
    worker = cli.start("worker")
    until(lambda: all(is_waiting(cli, source) for source in sources))
    worker.send_signal(signal.SIGTERM)
    assert cli.end(worker).code == 0


def is_waiting(cli: Cli, job: object) -> bool:
    ended = cli.end(cli.start("status", job))  # it may not have been submitted yet
    return "waits for an outside event" in ended.out


def test_with_a_shared_ledger_the_receipt_is_in_its_own_workspace(fleet: Cli) -> None:
    one, two = fleet.source("a.txt", "first"), fleet.source("b.txt", "second")
    deferred_jobs(fleet, one, two)
    ended = fleet("finish", "token-b.txt", "--result", "9", "--json")
    assert (ended.json["task"], ended.json["state"]) == ("outside", "done")
    assert (receipts(fleet, one), [it["result"] for it in receipts(fleet, two)]) == ([], ["9"])
    ledger = fleet.env.pop("INTERMISSION_LEDGER")
    again = fleet("finish", "token-b.txt", "--result", "8", "--ledger", ledger, code=2)
    in_sentence(again.err, "outside of job", "is done, with the result that came first")
    fleet("finish", "token-a.txt", "--failed", "no luck", "--ledger", ledger)
    fleet("retry", one, "--ledger", ledger)


def test_a_file_ends_a_task_of_a_run(cli: Cli) -> None:
    source, made = cli.source(), cli.source("made.bin", "12345")
    process = cli.begin("rendering", source)
    until(lambda: is_waiting(cli, source))
    missing = cli("finish", "render/a.txt", "--result", '"x.bin"', code=2)
    in_sentence(missing.err, "the result of rendered is not what the step returns")
    cli("finish", "render/a.txt", "--result", '"x.bin"', "--file", f"x.bin={made}")
    assert cli.end(process).code == 0
    measured = cli.folder / "rendering/a/measured.txt"
    assert measured.read_text() == "x.bin has 5 bytes"


def test_over_http_with_a_file_once(cli: Cli) -> None:
    cli.env |= {"INTERMISSION_ADMIN_SECRET": "a-secret-of-the-tests"}
    cli.env |= {"INTERMISSION_CACHE_DIR": "cache"}
    server = cli.start("serve", "--port", 0, "--pipeline", f"{PIPELINES}:rendering")
    assert server.stderr is not None
    address = server.stderr.readline().split()[-1]
    cli.env["INTERMISSION_SERVER"] = address
    made = cli.source("made.bin", "12345")
    (key,) = cli("submit", f"{PIPELINES}:rendering", cli.source()).out.split()
    worker = cli.start("worker")
    until(lambda: is_waiting(cli, key))
    unknown = cli("finish", "render/b.txt", "--result", "1", code=2)
    in_sentence(unknown.err, "no task of the ledger waits for 'render/b.txt'")
    large = cli("finish", "render/a.txt", "--result", f'"{"x" * 70_000}"', code=2)
    in_sentence(large.err, "the result has more than 65536 bytes")
    elsewhere = {"INTERMISSION_SERVER": "", "INTERMISSION_PIPELINES": ""}
    how = "--result", '"x.bin"', "--file", f"x.bin={made}", "--server", address
    cli("finish", "render/a.txt", *how, env=elsewhere)
    assert "rendered is done" in cli("finish", "render/a.txt", *how, env=elsewhere).err
    other = cli("finish", "render/a.txt", "--failed", "no", "--server", address, code=2)
    in_sentence(other.err, "is done, with the result that came first")
    until(lambda: {job["state"] for job in cli("ls", "--json").json["jobs"]} == {"done"})
    (measured,) = (cli.folder / "intermission-data").rglob("rendering/**/measured.txt")
    assert measured.read_text() == "x.bin has 5 bytes"
    worker.send_signal(signal.SIGTERM)
    assert cli.end(worker).code == 0
