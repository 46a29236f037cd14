"""What the ledger needs of a database: statements by name, changes, its time.

Two kinds of work have a method of their own instead of a statement: what runs for every task, and
what must not wait for other workers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from intermission.model import Completion, JobState, TaskState, canonical

T = TypeVar("T")
Row = tuple[Any, ...]
Span = tuple[int, int]
"""The chunks concerned: first and last, both included."""
Place = tuple[int, int, int, int]
"""Chunks of a step of a job: job, step, first, last."""


class Opening(NamedTuple):
    """A step of a job that may have a task to hand out."""

    job_id: int
    revision: int
    """Of the job's spec."""
    state: str
    """Of the job."""
    step: int
    kind: int
    """The class of work that it is of."""
    is_waiting: bool
    """Whether it prefers another worker, for a while."""
    any_limits: bool
    """Whether there are any limits at all."""
    spec: str | None = None
    """Of the job, where reading it along saves asking again."""


Openings = tuple[list[Opening], bool]
"""With whether there may be more."""


class Wanted(NamedTuple):
    """What a claim asks for."""

    offers: Collection[str]
    runs: Collection[str] | None
    jobs: Collection[str] | None
    count: int
    known: Sequence[int] = ()
    """Jobs whose specs the claim has."""


class Taker(NamedTuple):
    """Who claims, and how."""

    worker: str
    host: str
    lease_ttl_s: float
    begin: bool


class Request(NamedTuple):
    """Tasks of a step that a claim would take."""

    job_id: int
    step: int
    room: int
    """At most so many."""
    since_ms: int
    """Only those that have waited since then."""


class Database(Protocol):
    """One instance per thread; never carried across a fork."""

    @property
    def now_ms(self) -> int:
        """The time of the change under way."""
        ...

    @property
    def now_s(self) -> float:
        """The same; leases and delays are in seconds of this clock."""
        ...

    def rows(self, name: str, /, **values: Any) -> list[Row]:
        """Run a statement: in the change under way, or else as a read of its own.

        A value may be a list, or a list of rows. `now_ms` and `now_s` are always among the
        values.
        """
        ...

    def later(self, name: str, /, **values: Any) -> None:
        """Run a statement of the change under way whose rows nobody wants: when the next one
        runs, or else when the change ends."""
        ...

    def change(self, work: Callable[[], T], *, hurry_s: float | None = None) -> T:
        """Run `work` as one transaction; it may run several times.

        With `hurry_s`, it is given up after about as long.
        """
        ...

    def nothing_changed(self) -> None:
        """The change under way may be undone, and no disk has to wait for it."""
        ...

    def show_openings(self) -> None:
        """From here on, `openings` finds what the change under way has made claimable."""
        ...

    def lock_jobs_of(self, task_ids: Sequence[int]) -> list[tuple[int, int]]:
        """Keep others from changing the jobs of these tasks; id and revision of those known."""
        ...

    def openings(
        self, wanted: Wanted, tried: Collection[int], without: Collection[int]
    ) -> Openings:
        """The first steps that may have a task, in turn; at least `wanted.count` if there are.

        Without these jobs, and without these classes of work. All steps of a job together.
        """
        ...

    def pick(self, requests: Sequence[Request], count: int, host: str) -> list[Row]:
        """Claimable tasks that nobody else is about to take, as rows of (id, step, ...)."""
        ...

    def lease(self, picked: Sequence[Row], taker: Taker) -> list[Row]:
        """Take them: (job, id, fence, attempt, step, index, key, chunk, lost) of each."""
        ...

    def take(self, requests: Sequence[Request], count: int, taker: Taker) -> list[Row]:
        """Both at once: jobs in their order, of each the oldest tasks, until there are enough."""
        ...

    def take_turns(
        self, jobs: Sequence[int], starting: Collection[int], emptied: Sequence[tuple[int, int]]
    ) -> None:
        """These jobs were given tasks, and come after all others; some have only begun.

        Of the (job, step) of `emptied` the only task was taken.
        """
        ...

    def close_openings(self, empty: Sequence[tuple[int, int]]) -> None:
        """A claim had nothing of these (job, step): forget them, unless others may have."""
        ...

    def insert_tasks(self, job_id: int, rows: Sequence[Row], spans: dict[int, Span]) -> set[int]:
        """Add (step, index, key, chunk, state). The steps of which any is new or replaced.

        A task that is there under the same key stays; under another key it starts afresh. With
        no spans, the job has no tasks yet.
        """
        ...

    def finish(self, done: Sequence[Completion]) -> list[tuple[int, int, int, int, int]]:
        """Make tasks `done` whose fence is current: (id, fence, job, step, index) of these."""
        ...

    def job_rows(self, name: str, states: Collection[JobState], **values: Any) -> list[Row]:
        """Rows of jobs in these states (none: in any), newest first."""
        ...

    def task_rows(
        self, job_id: int, states: Collection[TaskState], step: int | None, after: int, limit: int
    ) -> list[Row]:
        """Rows of a job's tasks in the order of their ids, above `after`."""
        ...

    def ended(self, jobs: Sequence[int]) -> None:
        """These jobs have ended in the change under way."""
        ...

    def tidy(self, jobs: Sequence[int]) -> None:
        """Look after what piles up for these jobs."""
        ...

    def delete(self, job_id: int) -> bool:
        """Remove a job; False while a lease of it is held."""
        ...

    def close(self) -> None: ...


def receipt_of(done: Completion) -> tuple[str | None, str | None]:
    """The key that a task's receipt was written under and the files it names, as they are kept."""
    if done.receipt is None:
        return None, None
    refs = [(f.name, f.key, f.size_bytes, f.sha256) for f in done.receipt.files]
    return done.receipt.task_key, canonical(refs) if refs else None


def spans_of(numbers: Collection[int]) -> list[Span]:
    """Numbers as spans; those of one batch mostly follow each other."""
    rest = sorted(set(numbers))
    if rest and rest[-1] - rest[0] == len(rest) - 1:
        return [(rest[0], rest[-1])]
    found: list[Span] = []
    for number in rest:
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found
