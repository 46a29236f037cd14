"""The ledger as the engine sees it: who works on what.

Every change is compare-and-set on (task, fence, state) inside one transaction, follows
`model.TRANSITIONS`, and appends an event. The ledger can be stale, restored from a copy or
deleted: receipts in the store, not rows here, are what makes a task finished. Leases end by
the ledger's own clock. Implementations raise `LedgerError` and nothing of their driver's.

A key-value database with conditional writes could implement it: take one that changes at most 100
items in a transaction and keeps at most 400 KB in an item. A task is an item under (job, step,
index), a job is an item, and an index by class of work (code, step, label) holds what is claimable.
- `claim`, `renew`, `release`, `defer`, `fail`: one conditional write for each task, on its fence
  and state. A batch need not be atomic; a claim goes along the index of its classes.
- `complete`: one conditional write for each task, then what waited is looked at again: a fan-in
  may start if no input is unfinished, so whoever ends last starts it, and a repeat changes
  nothing. A result of at most 64 KiB fits beside its task. `complete_and_claim` may claim nothing.
- `submit`, `expand`: tasks are put 100 at a time on condition that another key is there; the job
  comes first, the completion of a plan last, and no fan-in starts in between.
- `fail` for good, `retry`, `invalidate`, `cancel`, `delete`: first a mark on the job, then tasks
  100 at a time. `rescue` sweeps a few jobs each time, and ends what a crash left half done.
- Reads are pages along an index, and none has to be consistent with another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import NamedTuple, Protocol, TypeVar

from intermission.model import (
    Completion,
    Event,
    Failure,
    Heartbeat,
    Job,
    JobRow,
    JobState,
    Lease,
    Limit,
    Output,
    Renewal,
    Task,
    TaskOutput,
    TaskRow,
    TaskState,
)

T = TypeVar("T")

PAGE = 1000
"""As many rows has a page, where nobody says otherwise."""

STUCK_HOSTS = 3
"""When so many hosts have refused a task, people are told that no worker can run it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a host can't run for now, by reason: it gave so many tasks back."""

    host: str
    code: str
    message: str
    tasks: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class DeferredTask:
    """A task that was left to an outside event, and what became of it."""

    job_key: str
    fence: int
    """Of the attempt that deferred it."""
    row: TaskRow
    """As it is now."""

    @property
    def is_waiting(self) -> bool:
        return self.row.state is TaskState.RUNNING and self.row.fence == self.fence


class Ask(NamedTuple):
    """What a worker would claim, as `Ledger.claim` takes it."""

    worker: str
    capacity: int
    lease_ttl_s: float
    host: str = ""
    offers: Collection[str] = ()
    runs: Collection[str] | None = None
    jobs: Collection[str] | None = None
    begin: bool = True


class LedgerReads(Protocol):
    """Jobs, tasks and events, for those who look. A page of each; none of the same moment."""

    def limits(self) -> list[Limit]:
        """Every limit, by name."""
        ...

    def held_under(self, limit: str) -> int:
        """How many tasks run under a limit's name, or of a step: `step:PIPELINE/STEP`."""
        ...

    def job(self, key: str) -> Job | None:
        """The job with this key, as it was when last read: what was claimed is known by then."""
        ...

    def jobs(
        self,
        key_prefix: str = "",
        *,
        states: Collection[JobState] = (),
        pipeline: str | None = None,
        source: str | None = None,
        before: int | None = None,
        limit: int | None = None,
    ) -> list[JobRow]:
        """Jobs, newest first, with their counts; the first `limit` with an id below `before`."""
        ...

    def tasks(
        self,
        job_key: str,
        *,
        states: Collection[TaskState] = (),
        step: str | None = None,
        after: int = 0,
        limit: int = PAGE,
    ) -> list[TaskRow]:
        """A page of a job's tasks in the order they were added: those with an id above `after`."""
        ...

    def receipts(
        self, job_key: str, *, after: int = 0, limit: int = PAGE
    ) -> list[tuple[TaskRow, Output]]:
        """A page of a job's done tasks that have artifacts, with what their receipts name."""
        ...

    def outputs(
        self, job_key: str, step: str, *, after: int = -1, limit: int = PAGE
    ) -> list[TaskOutput]:
        """A page of what a step's tasks made, in chunk order: those with an index above `after`."""
        ...

    def deferred(self, token: str) -> DeferredTask | None:
        """The task that was deferred under this token, whether it still waits or not.

        Of several, one that waits, else the latest.
        """
        ...

    def events(self, after: int = 0, *, job: str | None = None, limit: int = 1000) -> list[Event]:
        """Events with a sequence number above `after`, in order; with `job`, of that job alone."""
        ...

    def workers(self) -> list[str]:
        """Every worker that holds a lease."""
        ...

    def refusals(self) -> list[Refusal]:
        """What hosts can't run for now, by host and reason."""
        ...

    def close(self) -> None:
        """Give up the connection; held leases stay held."""
        ...


class Ledger(LedgerReads, Protocol):
    """Jobs and tasks, for those who work. One instance per thread; never carried across a fork."""

    def submit(self, job: Job, tasks: Iterable[Task]) -> bool:
        """Add a job and its first tasks; one transaction.

        False if its key is known: then only the steps' limits (attempts, needs, concurrency)
        change to what they are now.
        """
        ...

    def claim(
        self,
        worker: str,
        capacity: int,
        *,
        lease_ttl_s: float,
        host: str = "",
        offers: Collection[str] = (),
        runs: Collection[str] | None = None,
        jobs: Collection[str] | None = None,
        begin: bool = True,
    ) -> list[Lease]:
        """Take up to `capacity` claimable tasks: highest priority first, then the job that was
        given none for longest, then the oldest job; of a job, its oldest tasks.

        Only tasks whose time has come, whose step needs nothing outside the labels of `offers`
        (and prefers nothing outside them, until it has waited), which no limit forbids, which
        `host` has not refused for now, of jobs whose `code` is among `runs` (None: any), and,
        with `jobs`, of those jobs. Adds one to the fence of each and counts nothing else. No
        task is ever handed to two callers under one fence. With `begin`, the caller starts them
        at once; else each begins with the first heartbeat that says so.
        """
        ...

    def renew(self, worker: str, heartbeats: Sequence[Heartbeat], *, lease_ttl_s: float) -> Renewal:
        """Extend leases whose fence is still current, even late; record progress.

        A `leased` task that has begun turns `running`. Progress never goes back within an
        attempt; another hundredth is an event, unless one was in the last `PROGRESS_EVERY_MS`.
        Answers which leases are lost and which tasks' jobs are cancelled. Also the worker's sign
        of life.
        """
        ...

    def expand(self, task_id: int, fence: int, key: str, tasks: Sequence[Task]) -> bool:
        """Add a page of what a plan found, before `complete` closes it; one transaction.

        Idempotent by (job, step, index): a task that is there under the same key stays, under
        another it starts afresh, and what was made of all tasks of its step is blocked again. What
        was added may start at once; a fan-in can't before the plan is done. False when the fence
        is no longer current, the plan has ended, or the id is another task's by now.
        """
        ...

    def complete(self, done: Sequence[Completion]) -> list[bool]:
        """Record ends, unblock what waited for them, add what plans found: one transaction.

        True per completion that took effect or had already (a repeat is a no-op), False for
        one whose fence is no longer current. Raises `StalePlans` and changes nothing when a
        completion's `plans` are not the plans done by now. A late completion of an
        `abandoned` task nobody claimed since is accepted, and so is one `by_receipt` of a task
        that is claimable. A plan's completion adds its
        last page as `expand` does, and removes tasks beyond `totals`: those of an earlier run.
        """
        ...

    def complete_and_claim(
        self, done: Sequence[Completion], ask: Ask
    ) -> tuple[list[bool], list[Lease]]:
        """`complete`, and in the same transaction `claim`, so that a job goes on without a pause.

        Leases come only of the jobs that these tasks are of, while it is their turn and no limit
        is over them. None says nothing of what a claim would find.
        """
        ...

    def fail(self, failures: Sequence[Failure]) -> list[TaskState | None]:
        """Record failed attempts; the state each task is in now, None for a stale fence.

        Each costs one attempt. `retrying` while attempts are left and the failure is not
        permanent, else `failed`:
        then everything that needs the task is cancelled, or, for a step with `gap`, its
        chunk is a gap from here on and fan-ins go ahead without it.
        """
        ...

    def release(
        self,
        leases: Iterable[tuple[int, int]],
        *,
        reason: str,
        message: str | None = None,
        host: str | None = None,
        until_s: float = 0.0,
    ) -> int:
        """Give (task, fence) leases back uncounted, as after a drain: `abandoned`.

        `reason` is one of `Reason`, `message` the words for people. With `host`, that host can't
        run them: it gets none of them for `until_s` seconds, other hosts do. How many hosts have
        refused a task is in its row until it is done, fails for good or is put back.
        """
        ...

    def defer(self, task_id: int, fence: int, *, token: str, timeout_s: float) -> bool:
        """Keep a task `running` without a worker until `complete` or the time-out."""
        ...

    def rescue(self, dead: Collection[str] = ()) -> int:
        """End leases that expired or whose worker is known to be dead; re-check fan-ins.

        They become `abandoned`. A task that had begun is `lost` once more, and `failed` when
        that was `lost_max` times (a setting of the ledger); one that had not is as before. A
        deferral that timed out costs an attempt. Returns how many tasks changed.
        """
        ...

    def retry(self, job_key: str, task_ids: Collection[int] | None = None) -> int:
        """Give failed or cancelled tasks (all of them by default) a fresh set of attempts.

        Finished tasks that depend on them are blocked again.
        """
        ...

    def cancel(self, job_key: str, *, reason: str) -> bool:
        """Cancel a job and its unfinished tasks. False if it had already ended."""
        ...

    def invalidate(self, task_ids: Collection[int], *, reason: str) -> list[TaskRow]:
        """Done tasks whose bytes are lost turn `corrupt`; done dependants turn `blocked`.

        Returns every task that changed, so that their receipts can be quarantined.
        """
        ...

    def delete(self, job_key: str) -> bool:
        """Remove a job and its tasks. False, and no change, while a lease of it is held."""
        ...

    def mark(self, job_key: str, state: JobState, *, reason: str | None = None) -> bool:
        """Set a job's state, if the transition is legal from the one it has."""
        ...

    def limit(self, limit: Limit) -> None:
        """Set how much may run under a name; one that bounds nothing is forgotten."""
        ...


def task_with(ledger: LedgerReads, job_key: str, task_id: int) -> TaskRow | None:
    """The task with this id, if the job has it."""
    page = ledger.tasks(job_key, after=task_id - 1, limit=1)
    return page[0] if page and page[0].id == task_id else None


def output_of(ledger: LedgerReads, job_key: str, step: str, index: int = 0) -> Output | None:
    """What one task made; None while it is not done."""
    page = ledger.outputs(job_key, step, after=index - 1, limit=1)
    return page[0].output if page and page[0].index == index else None


def outputs_at(
    ledger: LedgerReads, job_key: str, step: str, indexes: Iterable[int]
) -> Iterator[TaskOutput]:
    """What the tasks with these indexes made; those that follow each other in one read."""
    for _, run in groupby(enumerate(sorted(indexes)), lambda at: at[1] - at[0]):
        some = [index for _, index in run]
        for first in range(0, len(some), PAGE):
            limit = min(PAGE, len(some) - first)
            yield from ledger.outputs(job_key, step, after=some[first] - 1, limit=limit)


def every_task(
    ledger: LedgerReads,
    job_key: str,
    *,
    states: Collection[TaskState] = (),
    step: str | None = None,
) -> Iterator[TaskRow]:
    """All tasks of a job in the order they were added, read page by page."""
    read = partial(ledger.tasks, job_key, states=states, step=step)
    return _walk(lambda after: read(after=after), lambda row: row.id, 0)


def every_receipt(ledger: LedgerReads, job_key: str) -> Iterator[tuple[TaskRow, Output]]:
    """All done tasks of a job that have artifacts, read page by page."""
    return _walk(lambda after: ledger.receipts(job_key, after=after), lambda pair: pair[0].id, 0)


def every_output(ledger: LedgerReads, job_key: str, step: str) -> Iterator[TaskOutput]:
    """What all tasks of a step made, in chunk order, read page by page."""
    return _walk(lambda after: ledger.outputs(job_key, step, after=after), lambda one: one.index)


def _walk(
    read: Callable[[int], Sequence[T]], number: Callable[[T], int], after: int = -1
) -> Iterator[T]:
    while page := read(after):
        yield from page
        after = number(page[-1])
