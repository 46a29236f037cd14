"""Many workers, every fault, hundreds of seeds: the promise holds; and bugs that must be found.

`SIM_SEEDS=137` plays one seed again, `SIM_SEEDS=1000:5000` looks further than a test run does.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from intermission.backends.executor import slot
from intermission.backends.executor.local import LocalExecutor
from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.backends.task_io import store_io
from intermission.backends.task_io.store_io import StoreIO
from intermission.backends.work_source.shared_jobs import SharedJobs
from intermission.engine import completion, receipt
from intermission.engine.receipt import receipt_key
from intermission.errors import EnvironmentFault, PipelineError, StoreError
from intermission.model import Completion, Failure, Lease, Reason, Receipt
from intermission.ports.ledger import Ask
from intermission.ports.slot_protocol import HostFault, Inputs, JobContext
from intermission.ports.store import Store
from intermission.ports.work_source import ClaimedJob
from intermission.telemetry import OWNERSHIP_POINTS, POINTS, reached
from intermission.testing.clock import FakeClock
from intermission.testing.scratch_ledger import scratch_folder
from intermission.testing.simulator import (
    AIMED,
    FAULTS,
    Results,
    SqliteLedgers,
    Violation,
    maintenance_actor,
    simulate,
)

CANARY_SEEDS = 300
WITHOUT_AN_ATTEMPT = (
    Reason.OTHER_VERSION,
    Reason.MISSING_PACKAGE,
    Reason.SCRATCH_FULL,
    Reason.SCRATCH_FAILED,
    Reason.STORE_UNREACHABLE,
    Reason.STORE_AWAY,
    Reason.HOST_FAULT,
    Reason.DRAINED,
    Reason.LEASE_LOST,
    Reason.NO_SLOT,
)
"""Why leases are given back in some of the seeds."""


def seeds(default: range) -> Sequence[int]:
    first, colon, last = os.environ.get("SIM_SEEDS", "").partition(":")
    if not first:
        return default
    return range(int(first), int(last)) if colon else [int(first)]


def ledgers_in(
    folder: Path, kind: type[SqliteLedger] = SqliteLedger
) -> Callable[[FakeClock], SqliteLedgers]:
    return partial(SqliteLedgers, folder=folder / "ledgers", kind=kind)


@pytest.fixture
def scratch() -> Iterator[Path]:
    folder = scratch_folder()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("undisturbed")
    return simulate(0, folder, ledgers_in(folder), faults=(), mixed=True).results


@pytest.mark.parametrize("seed", seeds(range(160)))
def test_no_seed_breaks_the_promise(seed: int, scratch: Path, undisturbed: Results) -> None:
    simulate(seed, scratch, ledgers_in(scratch), expected=undisturbed)


@pytest.mark.parametrize("seed", seeds(range(20)))
def test_no_aimed_fault_breaks_it(seed: int, scratch: Path, undisturbed: Results) -> None:
    faults = ("corrupt", "crash", *AIMED)
    simulate(seed, scratch, ledgers_in(scratch), faults=faults, expected=undisturbed)


def test_an_undisturbed_run_executes_every_task_once(scratch: Path) -> None:
    report = simulate(0, scratch, ledgers_in(scratch), faults=())
    assert set(report.executions.values()) == {1}
    assert len(report.executions) == 16
    assert not report.faults


def test_a_seed_plays_the_same_story_again(scratch: Path) -> None:
    for seed in range(1000, 1010):
        folders = [scratch / f"{seed}-{n}" for n in range(2)]
        once, again = (simulate(seed, folder, ledgers_in(folder)) for folder in folders)
        assert once == again
    assert simulate(1, scratch / "1", ledgers_in(scratch / "1")).trace != once.trace


def test_the_seeds_meet_every_fault_and_every_fault_point(scratch: Path) -> None:
    faults: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    points: set[str] = set()
    for seed in range(2000, 2060):
        folder = scratch / str(seed)
        report = simulate(seed, folder, ledgers_in(folder))
        faults += report.faults
        counts += report.counts
        points |= {line.partition(" point ")[2] for line in report.trace}
    assert set(faults) == set(FAULTS)
    assert counts.keys() >= {"completion refused", "task invalidated", *WITHOUT_AN_ATTEMPT}
    assert points >= set(POINTS) - set(OWNERSHIP_POINTS)  # its workspace has no lock


def overwriting(store: Store, made: Receipt) -> tuple[Receipt, bool]:
    """A commit that does not ask whether somebody was first."""
    store.replace(receipt_key(made.step, made.task_key), made.to_json().encode())
    return made, True


def stubborn(io: StoreIO, _: Lease, made: Receipt) -> tuple[Receipt, bool]:
    """A commit that loses and goes on with its own result."""
    standing, ours = receipt.commit(io.store, made)
    return (standing if ours else made), ours


def forgetful(*_: object) -> None:
    """An adoption that never finds anything."""


def hasty(store: Store, key: str, _: bytes) -> None:
    """A withdrawal that takes whatever receipt stands there by now."""
    reached("mid-quarantine")
    store.replace(key, b"")


def leaving(source: SharedJobs, job: ClaimedJob, leases: Sequence[Lease], fault: HostFault) -> None:
    """A host's fault ends its worker, and the next one's after it."""
    job.release(leases, reason=fault.reason, message=fault.message)
    raise EnvironmentFault(fault.message)


def careless(*_: object) -> set[tuple[str, int]]:
    """A garbage collector that does not ask who is at work."""
    return set()


def burning(source: SharedJobs, _: str, leases: Sequence[Lease], fault: HostFault) -> None:
    """A host that cannot run a task fails it for everybody."""
    source._ledger.fail(
        [Failure(one.task_id, one.fence, "NoPipeline", fault.message, True) for one in leases]
    )


def blaming(kind: type[Exception]) -> Callable[..., HostFault | None]:
    """A slot that takes one kind of error for the task's own."""

    right = slot.host_fault

    def host_fault(lease: Lease, e: Exception) -> HostFault | None:
        return None if isinstance(e, kind) else right(lease, e)

    return host_fault


def dropping() -> Callable[..., int]:
    """An executor that now and then forgets a batch on its way to a slot that was busy before."""
    start = LocalExecutor.start

    def start_some(
        executor: LocalExecutor,
        context: JobContext,
        leases: Sequence[Lease],
        inputs: Mapping[int, Inputs],
    ) -> int:
        if executor._runs % 4 != 3:
            return start(executor, context, leases, inputs)
        taken = executor._take()
        executor._runs += 1
        taken.run, taken.unanswered = executor._runs, len(leases)
        return taken.run

    return start_some


class PlainLedger(SqliteLedger):
    """Hands over by the two calls that a bug may be in."""

    def complete_and_claim(
        self, done: Sequence[Completion], ask: Ask
    ) -> tuple[list[bool], list[Lease]]:
        return self.complete(done), self.claim(**ask._asdict())


class FencelessLedger(PlainLedger):
    """Listens to whoever speaks last."""

    def complete(self, done: Sequence[Completion]) -> list[bool]:
        sql = "SELECT fence FROM tasks WHERE id = ?"
        fences = {
            one.task_id: self.database.connection.execute(sql, (one.task_id,)).fetchone()
            for one in done
        }
        known = [one for one in done if fences[one.task_id]]
        return super().complete([replace(one, fence=fences[one.task_id][0]) for one in known])


class GenerousLedger(PlainLedger):
    """Hands a task to a second worker under the fence of the first."""

    def claim(self, worker: str, capacity: int, **options: object) -> list[Lease]:
        leases = super().claim(worker, capacity, **options)  # type: ignore[arg-type]
        for lease in leases[:1]:
            sql = "UPDATE tasks SET fence = max(fence - 1, 1) WHERE id = ?"
            self.database.connection.execute(sql, (lease.task_id,))
        return [replace(lease, fence=max(lease.fence - 1, 1)) for lease in leases[:1]] + leases[1:]


class NameBlindLedger(PlainLedger):
    """Goes by ids alone, whatever they meant before it was restored."""

    def complete(self, done: Sequence[Completion]) -> list[bool]:
        return super().complete([replace(one, key=None) for one in done])


def is_found(
    complaint: str, made: type[SqliteLedger], faults: Sequence[str], scratch: Path, first: int = 0
) -> bool:
    """Whether some seed notices a bug by the check that is meant for it.

    A bug that few seeds notice is looked for from near such a seed, and then among the others.
    """
    for n in range(CANARY_SEEDS):
        try:
            ledgers = ledgers_in(scratch, made)
            simulate((first + n) % CANARY_SEEDS, scratch, ledgers, faults=faults)
        except Violation as e:
            if complaint in str(e):
                return True
        shutil.rmtree(scratch, ignore_errors=True)
    return False


HOST_FAULTS = ("scratch_full", "disk_error", "missing_package", "no_device", "crash")


@pytest.mark.parametrize(
    ("places", "bug", "faults", "first", "complaint"),
    [
        ([(store_io, "commit")], overwriting, FAULTS, 4, "changed the standing receipt"),
        ([(StoreIO, "commit")], stubborn, AIMED, 0, "whose receipt never stood"),
        ([(store_io, "adopt")], forgetful, FAULTS, 0, "although it has a receipt"),
        (
            [(completion, "withdraw"), (receipt, "withdraw")],
            hasty,
            ("corrupt", *AIMED),
            0,
            "into quarantine",
        ),
        ([(SharedJobs, "refuse")], leaving, HOST_FAULTS, 0, "ended with an error"),
        (
            [(maintenance_actor, "attempts_under_way")],
            careless,
            ("slot_stall", "sweep"),
            0,
            "collected",
        ),
        ([(SharedJobs, "_refuse")], burning, ("upgrade",), 1, "by no fault of its own"),
        ([(slot, "host_fault")], blaming(PipelineError), ("upgrade",), 1, "by no fault of its own"),
        ([(slot, "host_fault")], blaming(StoreError), ("store_away",), 0, "by no fault of its own"),
        ([(slot, "host_fault")], blaming(OSError), HOST_FAULTS, 0, "by no fault of its own"),
        ([(LocalExecutor, "start")], dropping(), ("crash",), 0, "and no slot has begun it"),
    ],
)
def test_a_canary_in_the_engine_is_found(
    places: Sequence[tuple[ModuleType | type, str]],
    bug: Callable[..., object],
    faults: Sequence[str],
    first: int,
    complaint: str,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for owner, name in places:
        monkeypatch.setattr(owner, name, bug)
    assert is_found(complaint, SqliteLedger, faults, scratch, first)


@pytest.mark.parametrize(
    ("ledger", "faults", "first", "complaint"),
    [
        (FencelessLedger, FAULTS, 13, "were answered"),
        (GenerousLedger, FAULTS, 0, "was handed out twice"),
        (NameBlindLedger, ("crash", "echo", "lose"), 184, "were answered"),
    ],
)
def test_a_canary_in_the_ledger_is_found(
    ledger: type[SqliteLedger], faults: Sequence[str], first: int, complaint: str, scratch: Path
) -> None:
    assert is_found(complaint, ledger, faults, scratch, first)
