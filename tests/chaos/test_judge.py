"""The judge finds each thing that can be wrong, and nothing in a run that went well."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.customers import Asked
from chaos.facts import Execution, Facts
from chaos.judge import SCRATCH_BYTES, Evidence, explanation, repeats, verdict
from chaos.strike import Struck

JOB, TASK = "a" * 40, "b" * 40


@pytest.fixture
def sound(tmp_path: Path) -> Evidence:
    """One job with one task, executed and committed once."""
    artifact = tmp_path / "artifacts" / "file.txt"
    artifact.parent.mkdir()
    artifact.write_text("bytes")
    sha256 = hashlib.sha256(b"bytes").hexdigest()
    path = tmp_path / "receipts" / "shout" / f"{TASK}.json"
    path.parent.mkdir(parents=True)
    receipt: dict[str, Any] = {
        "task_key": TASK,
        "step": "shout",
        "attempt": "00001-abc",
        "fence": 1,
        "ended_ms": 11_000,
        "files": [{"name": "file.txt", "key": "artifacts/file.txt", "sha256": sha256}],
    }
    path.write_text(json.dumps(receipt))
    task = {"task": "shout", "key": TASK, "state": "done", "attempts": 1}
    event = {"event": "task", "job": JOB, "task": "shout", "now": "done", "fence": 1}
    facts = Facts(
        jobs={JOB: {"state": "done"}},
        tasks={JOB: [task]},
        events=[event],
        outputs={JOB: {"file.txt": sha256}},
        receipts={TASK: {**receipt, "path": path}},
        executions={TASK: [Execution(TASK, "00001-abc", "shout", "w1", 10.0, 10.9)]},
    )
    return Evidence(
        facts=facts,
        asked={JOB: Asked(JOB, "letters", 1, Path("source.txt"), 0)},
        cancelled=frozenset(),
        struck=[],
        receipts_seen={path: hashlib.sha256(path.read_bytes()).hexdigest()},
        worker_exits=[],
        scratch_bytes={"w1": 0},
        processes_left=[],
        expected={JOB: {"file.txt": sha256}},
        otherwise_wrong=[],
    )


def red(evidence: Evidence) -> set[str]:
    return {check for check, wrong in verdict(evidence).items() if wrong}


def test_nothing_is_wrong_with_a_run_that_went_well(sound: Evidence) -> None:
    assert red(sound) == set()
    assert not repeats(sound)


@pytest.mark.parametrize("state", ["failed", "running", "cancelled"])
def test_a_job_that_did_not_end_well(sound: Evidence, state: str) -> None:
    sound.facts.jobs[JOB]["state"] = state
    assert red(sound) == {"every job is done"}


def test_a_job_that_was_cancelled_may_be(sound: Evidence) -> None:
    sound.facts.jobs[JOB]["state"] = "cancelled"
    assert red(replace(sound, cancelled=frozenset({JOB}))) == set()


def test_a_job_that_the_ledger_lost(sound: Evidence) -> None:
    del sound.facts.jobs[JOB]
    assert red(sound) == {"every job is done"}


def test_other_bytes(sound: Evidence) -> None:
    sound.facts.outputs[JOB] = {"file.txt": "other"}
    assert red(sound) == {"outputs are those of an undisturbed run"}


def test_an_output_that_is_missing(sound: Evidence) -> None:
    sound.facts.outputs[JOB] = {}
    assert red(sound) == {"outputs are those of an undisturbed run"}


def test_a_receipt_that_was_replaced_or_is_gone(sound: Evidence) -> None:
    (path,) = sound.receipts_seen
    path.write_text("{}")
    assert "receipts stay as they are" in red(sound)
    path.unlink()
    assert "receipts stay as they are" in red(sound)


def test_done_without_a_receipt(sound: Evidence) -> None:
    sound.facts.receipts.clear()
    assert red(sound) == {"what is done has a receipt and its files"}


def test_a_file_of_a_receipt_that_is_gone(sound: Evidence) -> None:
    (sound.facts.receipts[TASK]["path"].parents[2] / "artifacts" / "file.txt").unlink()
    assert red(sound) == {"what is done has a receipt and its files"}


def test_a_task_that_was_committed_twice(sound: Evidence) -> None:
    sound.facts.events.append(sound.facts.events[0])
    assert red(sound) == {"every task is committed once"}


def test_an_execution_after_the_receipt(sound: Evidence) -> None:
    late = Execution(TASK, "00002-def", "shout", "w2", 20.0, 21.0)
    sound.facts.executions[TASK].append(late)
    sound.struck.append(Struck("kill the database", "database", 19.0, 20.0))
    assert red(sound) == {"what is finished is not executed again"}


def test_a_host_that_was_stopped_between_its_look_and_its_work(sound: Evidence) -> None:
    late = Execution(TASK, "00002-def", "shout", "w2", 20.0, 21.0)
    sound.facts.executions[TASK].append(late)
    sound.struck.append(Struck("stop the whole host, long", "w2", 9.0, 20.0))
    assert red(sound) == set()


def test_a_repeat_that_nothing_explains(sound: Evidence) -> None:
    sound.facts.executions[TASK].insert(0, Execution(TASK, "00000-x", "shout", "w2", 8.0, 9.0))
    assert red(sound) == {"repeats are explained"}
    assert repeats(sound) == {"unexplained": 1}


@pytest.mark.parametrize(
    ("struck", "why"),
    [
        (Struck("kill the worker", "w2", 8.5, 12.0), "kill the worker"),
        (Struck("restart the server", "server", 8.5, 12.0), "restart the server"),
        (Struck("kill the worker", "w3", 8.5, 12.0), None),
        (Struck("kill the worker", "w2", 1.0, 2.0), None),
    ],
)
def test_a_fault_explains_what_it_struck(sound: Evidence, struck: Struck, why: str | None) -> None:
    sound.struck.append(struck)
    assert explanation(sound, Execution(TASK, "00000-x", "shout", "w2", 8.0, 9.0)) == why


def test_an_error_of_the_host_explains_itself(sound: Evidence) -> None:
    error = "OSError: [Errno 5] Input/output error: '/x'"
    one = Execution(TASK, "00000-x", "shout", "w2", 8.0, 9.0, error)
    assert explanation(sound, one) == "a host's fault"


def test_a_lost_lease_explains_a_repeat(sound: Evidence) -> None:
    one = Execution(TASK, "00007-x", "shout", "w2", 8.0, 9.0)
    assert explanation(sound, one) is None
    sound.facts.events.append({**sound.facts.events[0], "now": "abandoned", "fence": 7})
    assert explanation(sound, one) == "a lost lease"


def test_a_worker_that_left(sound: Evidence) -> None:
    sound.worker_exits.append("w1 exited with 4")
    assert red(sound) == {"no worker left"}


def test_a_scratch_that_grows(sound: Evidence) -> None:
    assert red(replace(sound, scratch_bytes={"w1": SCRATCH_BYTES + 1})) == {"scratch is bounded"}


def test_a_process_that_is_left(sound: Evidence) -> None:
    sound.processes_left.append("process 7")
    assert red(sound) == {"no process is left"}


def test_whatever_else(sound: Evidence) -> None:
    sound.otherwise_wrong.append("a submission was never taken")
    assert red(sound) == {"nothing else went wrong"}
