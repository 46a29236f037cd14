"""The judge: what must hold at the end of a run, each check by itself, with what is wrong.

A check returns sentences, one for each thing that is wrong; none is what everybody hopes for.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.customers import Asked
from chaos.facts import Execution, Facts
from chaos.schedule import LEASE_S
from chaos.strike import Struck
from chaos.watcher import digest

SLACK_S = 2.0
"""Between a look for a receipt and the first line of a step, and between clocks."""
SCRATCH_BYTES = 16 * 1024 * 1024
"""What may lie in a host's scratch when nothing runs."""


@dataclass(frozen=True)
class Evidence:
    """All that the judge looks at."""

    facts: Facts
    asked: Mapping[str, Asked]
    cancelled: frozenset[str]
    struck: list[Struck]
    receipts_seen: Mapping[Path, str]
    worker_exits: list[str]
    scratch_bytes: Mapping[str, int]
    processes_left: list[str]
    expected: Mapping[str, Mapping[str, str]]
    """By job: the hashes of the outputs of an undisturbed run, by name."""
    otherwise_wrong: list[str]


def every_job_is_done(given: Evidence) -> Iterator[str]:
    for key, asked in given.asked.items():
        job = given.facts.jobs.get(key)
        state = None if job is None else job["state"]
        if state == "done" or (state == "cancelled" and key in given.cancelled):
            continue
        unfinished = [task for task in given.facts.tasks.get(key, ()) if task["state"] != "done"]
        why = "; ".join(
            f"{task['task']} is {task['state']} after {task['attempts']} attempts"
            f" ({task['error']}: {task['message']})"
            for task in sorted(unfinished, key=lambda task: task["state"] != "failed")[:2]
        )
        yield f"{asked.pipeline} release {asked.release}, job {key[:10]}, is {state}: {why}"


def outputs_are_those_of_an_undisturbed_run(given: Evidence) -> Iterator[str]:
    for key, expected in given.expected.items():
        found = given.facts.outputs.get(key)
        if found is not None and found != dict(expected):
            asked = given.asked[key]
            differ = sorted(
                name for name in {*found, *expected} if found.get(name) != expected.get(name)
            )
            yield (
                f"{asked.pipeline} release {asked.release} over {asked.source.name}, "
                f"job {key[:10]}: {', '.join(differ)} differ or are missing"
            )


def receipts_stay_as_they_are(given: Evidence) -> Iterator[str]:
    for path, was in given.receipts_seen.items():
        now = digest(path)
        if now != was:
            yield f"{path.name} {'was replaced' if now else 'is gone'} ({path.parent})"


def what_is_done_has_a_receipt_and_its_files(given: Evidence) -> Iterator[str]:
    for key, tasks in given.facts.tasks.items():
        for task in tasks:
            receipt = given.facts.receipts.get(task["key"])
            if task["state"] == "done" and receipt is None:
                yield f"{task['task']} of job {key[:10]} is done and has no receipt"
    for receipt in given.facts.receipts.values():
        workspace = receipt["path"].parent.parent.parent
        for file in receipt["files"]:
            path = workspace / file["key"]
            if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != file["sha256"]:
                yield f"{file['name']} of {receipt['step']} is gone or altered ({path})"


def every_task_is_committed_once(given: Evidence) -> Iterator[str]:
    done = Counter(
        (event["job"], event["task"])
        for event in given.facts.events
        if event["event"] == "task" and event["now"] == "done"
    )
    for (job, task), times in done.items():
        if times != 1:
            yield f"{task} of job {job[:10]} was completed {times} times"


def what_is_finished_is_not_executed_again(given: Evidence) -> Iterator[str]:
    for task, executions in given.facts.executions.items():
        receipt = given.facts.receipts.get(task)
        if receipt is None:
            continue
        finished = receipt["ended_ms"] / 1000
        for one in executions:
            late_s = one.began - finished
            if late_s > SLACK_S and not _host_was_struck(given, one.host, finished, one.began):
                yield (
                    f"{one.step} {task[:10]} began on {one.host} {late_s:.1f} s after its receipt"
                )


def repeats_are_explained(given: Evidence) -> Iterator[str]:
    for task, executions in given.facts.executions.items():
        receipt = given.facts.receipts.get(task)
        for one in executions:
            is_kept = receipt is not None and receipt["fence"] == one.fence
            if len(executions) > 1 and not is_kept and explanation(given, one) is None:
                yield (
                    f"{one.step} {task[:10]} ran {len(executions)} times, and nothing explains "
                    f"that its attempt {one.attempt} on {one.host} was not kept ({one.error})"
                )


def explanation(given: Evidence, one: Execution) -> str | None:
    """Why an execution's result was not kept: whose fault it was."""
    if one.error is not None and ("Errno 5]" in one.error or "Errno 28]" in one.error):
        return "a host's fault"
    if one.error is not None and "nobody wants" in one.error:
        return "cancelled, or its lease was lost"
    until = (one.ended or one.began) + LEASE_S + SLACK_S
    for struck in given.struck:
        if struck.began <= until and struck.ended >= one.began - SLACK_S:
            if struck.target == one.host:
                return struck.kind
            if struck.target in ("database", "server"):
                return struck.kind
    jobs = _jobs_of_task(given, one.task)
    if len(jobs) > 1:
        return "two jobs have this task"
    if _lost_lease(given, one):
        return "a lost lease"
    return None


def _jobs_of_task(given: Evidence, task: str) -> list[str]:
    return [
        job for job, tasks in given.facts.tasks.items() if any(it["key"] == task for it in tasks)
    ]


def _lost_lease(given: Evidence, one: Execution) -> bool:
    """Whether the ledger says that this attempt's lease ended without a result."""
    names = {
        (job, it["task"])
        for job, tasks in given.facts.tasks.items()
        for it in tasks
        if it["key"] == one.task
    }
    return any(
        (event["job"], event["task"]) in names
        and event["fence"] == one.fence
        and event["now"] in ("abandoned", "retrying")
        for event in given.facts.events
        if event["event"] == "task"
    )


def _host_was_struck(given: Evidence, host: str, since: float, until: float) -> bool:
    return any(
        struck.target == host and struck.began <= until and struck.ended >= since
        for struck in given.struck
    )


def no_worker_left(given: Evidence) -> Iterator[str]:
    yield from given.worker_exits


def scratch_is_bounded(given: Evidence) -> Iterator[str]:
    for host, used in given.scratch_bytes.items():
        if used > SCRATCH_BYTES:
            yield f"{host} keeps {used / 2**20:.1f} MiB in its scratch, and nothing runs there"


def no_process_is_left(given: Evidence) -> Iterator[str]:
    yield from given.processes_left


def nothing_else_went_wrong(given: Evidence) -> Iterator[str]:
    yield from given.otherwise_wrong


CHECKS: tuple[Callable[[Evidence], Iterator[str]], ...] = (
    every_job_is_done,
    outputs_are_those_of_an_undisturbed_run,
    receipts_stay_as_they_are,
    what_is_done_has_a_receipt_and_its_files,
    every_task_is_committed_once,
    what_is_finished_is_not_executed_again,
    repeats_are_explained,
    no_worker_left,
    scratch_is_bounded,
    no_process_is_left,
    nothing_else_went_wrong,
)


def verdict(given: Evidence) -> dict[str, list[str]]:
    """By check, what is wrong."""
    return {check.__name__.replace("_", " "): list(check(given)) for check in CHECKS}


def repeats(given: Evidence) -> Counter[str]:
    """How often work was done again, by what explains it."""
    found: Counter[str] = Counter()
    for task, executions in given.facts.executions.items():
        receipt: dict[str, Any] = given.facts.receipts.get(task, {})
        kept = receipt.get("fence")
        if len(executions) > 1:
            found.update(
                explanation(given, one) or "unexplained" for one in executions if one.fence != kept
            )
    return found


def executions_by_step(given: Evidence) -> dict[str, tuple[int, int]]:
    """By step: how many tasks were executed, and how often."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for executions in given.facts.executions.values():
        found[executions[0].step][0] += 1
        found[executions[0].step][1] += len(executions)
    return {step: (tasks, times) for step, (tasks, times) in found.items()}
