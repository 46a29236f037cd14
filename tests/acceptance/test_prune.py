"""A shared ledger that forgets: jobs go, what they made stays, and nothing is done again."""

from __future__ import annotations

import json
import signal
from contextlib import closing
from pathlib import Path

import pytest
from command_line import PIPELINES, Cli, in_sentence, until

from intermission.backends.ledger.sqlite import SqliteLedger


@pytest.fixture
def fleet(cli: Cli) -> Cli:
    cli.env["INTERMISSION_LEDGER"] = str(cli.folder / "ledger.sqlite")
    return cli


def jobs(cli: Cli) -> list[str]:
    with closing(SqliteLedger(cli.folder / "ledger.sqlite")) as ledger:
        return [str(row.state) for row in ledger.jobs()]


def work_off(cli: Cli, source: Path) -> None:
    cli("submit", f"{PIPELINES}:letters", source)
    worker = cli.start("worker")
    until(lambda: jobs(cli) == ["done"])
    worker.send_signal(signal.SIGTERM)
    assert cli.end(worker).code == 0


def test_a_pruned_job_is_found_finished_when_it_is_submitted_again(fleet: Cli) -> None:
    source = fleet.source()
    work_off(fleet, source)
    assert fleet.calls()["whole"] == 1
    assert fleet("prune", "--older-than", "1h").out == "forgot 0 jobs\n"
    assert "would forget 1 job\n" in fleet("prune", "--older-than", "0s", "--dry-run").out
    pruned = fleet("prune", "--older-than", "0s", "--pipeline", "letters", "--json").json
    assert [one["state"] for one in pruned["jobs"]] == ["done"]
    assert jobs(fleet) == []
    assert (source.parent / "shouted/a/whole.txt").read_text() == "AB!CD!EF!"
    work_off(fleet, source)
    assert not fleet.calls()


def test_what_is_no_age_and_no_state_is_refused(fleet: Cli) -> None:
    in_sentence(fleet("prune", "--older-than", "soon", code=2).err, "soon", "30d")
    wrong = fleet("prune", "--older-than", "1d", "--state", "running", code=2)
    in_sentence(wrong.err, "running", "cancelled")


def test_a_server_forgets_by_itself_and_says_so(fleet: Cli) -> None:
    fleet.run("letters", fleet.source(), env={"INTERMISSION_LEDGER": ""})  # so that all is adopted
    work_off(fleet, fleet.folder / "a.txt")
    settings = {"INTERMISSION_KEEP_JOBS_S": "1", "INTERMISSION_LOG_LEVEL": "info"}
    settings["INTERMISSION_LOG_FORMAT"] = "json"
    server = fleet.start("serve", "--port", "0", env=settings)
    assert server.stderr is not None
    told = dict[bool, str]()
    for line in server.stderr:
        told[line.startswith("{")] = line
        if len(told) == 2:  # it listens, and it has pruned
            break
    assert json.loads(told[True])["message"].endswith("ago: 1")
    assert jobs(fleet) == []
    server.send_signal(signal.SIGTERM)
    assert server.wait(20) == 0
