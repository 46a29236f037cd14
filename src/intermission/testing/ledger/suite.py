"""What the parts of the ledger contract share: fixtures, and hands that play a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from intermission.engine import inputs
from intermission.model import (
    EdgeKind,
    Failure,
    Heartbeat,
    Job,
    JobRow,
    Lease,
    Output,
    Renewal,
    TaskRow,
    TaskState,
)
from intermission.ports.ledger import Ledger
from intermission.testing.clock import FakeClock
from intermission.testing.jobs import Chunks, chunks, completion, states_of, submit
from intermission.testing.ledger.history import check_history

TTL_S = 60.0

OpenLedger = Callable[[], Ledger]

__all__ = [
    "TTL_S",
    "FakeClock",
    "Ledger",
    "OpenLedger",
    "Suite",
    "events_of",
    "fail",
    "finish",
    "heartbeat",
    "inputs_of",
    "job_row",
    "outputs_of",
    "planned",
    "row",
    "run",
    "states_of",
    "take",
    "take_named",
    "take_one",
]


class Suite:
    """A part of the contract. The subclass a backend writes brings `clock` and `open_ledger`."""

    @pytest.fixture
    def ledger(self, open_ledger: OpenLedger) -> Iterator[Ledger]:
        ledger = open_ledger()
        yield ledger
        ledger.close()

    @pytest.fixture(autouse=True)
    def legal_history(self, open_ledger: OpenLedger) -> Iterator[None]:
        yield
        ledger = open_ledger()
        check_history(ledger)
        ledger.close()


def take(
    ledger: Ledger,
    capacity: int = 100,
    *,
    worker: str = "w1",
    lease_ttl_s: float = TTL_S,
    **options: Any,
) -> list[Lease]:
    return ledger.claim(worker, capacity, lease_ttl_s=lease_ttl_s, **options)


def take_one(ledger: Ledger, *, worker: str = "w1", **options: Any) -> Lease:
    leases = take(ledger, 1, worker=worker, **options)
    assert len(leases) == 1, "a task should have been claimable"
    return leases[0]


def take_named(ledger: Ledger, *, worker: str = "w1", **options: Any) -> dict[str, Lease]:
    """Everything claimable, by display name."""
    leases = take(ledger, worker=worker, **options)
    named = {
        lease.step if lease.chunk is None else f"{lease.step}[{lease.index}]": lease
        for lease in leases
    }
    assert len(named) == len(leases)
    return named


def finish(
    ledger: Ledger, made: Job, *leases: Lease, found: Chunks = (), files: int = 0
) -> list[bool]:
    """Complete leases honestly in one batch; `found` are the chunks of a plan among them."""
    return ledger.complete(
        [completion(ledger, made, lease, found, files=files) for lease in leases]
    )


def planned(ledger: Ledger, made: Job, count: int = 3) -> Job:
    """A submitted job whose plan `cut` has found so many chunks."""
    submit(ledger, made)
    lease = next(lease for lease in take(ledger, jobs=[made.key]) if lease.step == "cut")
    assert finish(ledger, made, lease, found=chunks(count)) == [True]
    return made


def run(ledger: Ledger, made: Job, *, found: Sequence[str] | None = None) -> list[str]:
    """Work on a job until nothing of it is claimable; the tasks that ran, in order."""
    ran: list[str] = []
    while named := take_named(ledger, jobs=[made.key]):
        for name, lease in named.items():
            chunks_found = chunks(3) if found is None else found
            assert finish(ledger, made, lease, found=chunks_found) == [True]
            ran.append(name)
    return ran


def fail(
    ledger: Ledger,
    lease: Lease,
    *,
    permanent: bool = False,
    delay_s: float = 0.0,
    message: str = "it broke",
) -> TaskState | None:
    failure = Failure(lease.task_id, lease.fence, "Broken", message, permanent, delay_s)
    (state,) = ledger.fail([failure])
    return state


def heartbeat(
    ledger: Ledger,
    *leases: Lease,
    worker: str = "w1",
    progress: float = 0.0,
    lease_ttl_s: float = TTL_S,
) -> Renewal:
    heartbeats = [Heartbeat(lease.task_id, lease.fence, progress) for lease in leases]
    return ledger.renew(worker, heartbeats, lease_ttl_s=lease_ttl_s)


def row(ledger: Ledger, made: Job, name: str) -> TaskRow:
    """A task by its display name."""
    (found,) = [task for task in ledger.tasks(made.key) if task.name == name]
    return found


def outputs_of(ledger: Ledger, made: Job, step: str) -> list[Output | None]:
    """What the tasks of a step made, in chunk order; None for one that is not done."""
    return [one.output for one in ledger.outputs(made.key, step)]


def inputs_of(ledger: Ledger, made: Job, lease: Lease) -> dict[str, Any]:
    """By parameter, what a task takes: an output, or a tuple of them for a fan-in."""
    edges = {edge.param: edge.kind for edge in made.step(lease.step).edges}
    taken = inputs.inputs_of(ledger, made, lease)
    every = {param: tuple(outputs) for param, outputs in taken.items()}
    return {
        param: outputs if edges[param] is EdgeKind.ALL else outputs[0]
        for param, outputs in every.items()
    }


def job_row(ledger: Ledger, made: Job) -> JobRow:
    (found,) = [found for found in ledger.jobs() if found.job.key == made.key]
    return found


def events_of(ledger: Ledger, task_id: int | None) -> list[tuple[str | None, str]]:
    """A task's steps from state to state; with None, those of jobs."""
    return [
        (e.was, e.now)
        for e in ledger.events(limit=100_000)
        if e.task_id == task_id and e.progress is None
    ]
