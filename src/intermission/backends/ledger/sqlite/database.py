"""A ledger's database in one SQLite file: every change is one IMMEDIATE transaction.

Which transitions are legal is enforced by triggers, which also write the events, except those of
the two statements that run for every task: `lease` and `finish` write them by the batch. A change
ends by adding up its events, and by opening the steps that have something to claim since.
"""

from __future__ import annotations

import heapq
import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from intermission.backends.ledger.sql.database import (
    Opening,
    Openings,
    Request,
    Row,
    Span,
    Taker,
    Wanted,
    receipt_of,
    spans_of,
)
from intermission.backends.ledger.sqlite.connection import SQL, connect, transaction, translated
from intermission.model import CLAIMABLE, HELD, Completion, JobState, TaskState
from intermission.ports.clock import Clock, SystemClock

T = TypeVar("T")

as_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_ROWS_AT_ONCE = 64, 8, 1
"""So many rows a statement takes: few statements to prepare, and each of them used often."""
_LATE = HELD | {TaskState.ABANDONED}
_PAGE = 32
_FIRST = -(2**62)
DELETE_AT_ONCE = 2000

_Told = tuple[int, int, int, str, str | None, str | None]
"""What an event says of a task: fence, job, step, state before, worker, message."""
_TOLD = itemgetter(2, 3, 1, 4, 5, 6)


@cache
def _repeated(name: str, count: int) -> str:
    """A statement for `count` rows, which it has as `VALUES (...) ...`.

    Rows bound in place take half the time of rows that arrive as JSON.
    """
    before, row, after = re.split(r"(\([?, ]+\)) \.\.\.", SQL[name])
    return before + ", ".join([row] * count) + after


class SqliteDatabase:
    """One connection to one file."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self.path = path
        self._clock: Clock = clock or SystemClock()
        # Typed loosely: the driver's stubs make every column a union of all SQL types.
        self.connection: Any = connect(path)
        self.now_ms, self.now_s = 0, 0.0
        self._is_changing = False
        self._counted = 0
        """The last event of the change under way that was added up."""

    def close(self) -> None:
        self.connection.close()

    def rows(self, name: str, /, **values: Any) -> list[Row]:
        for key, value in values.items():
            if type(value) is list:
                values[key] = as_json(value)
        if self._is_changing:
            values["now_ms"], values["now_s"] = self.now_ms, self.now_s
            return self.connection.execute(SQL[name], values).fetchall()
        values["now_ms"], values["now_s"] = self._clock.now_ms(), self._clock.monotonic_s()
        with translated(self.path):
            return self.connection.execute(SQL[name], values).fetchall()

    def later(self, name: str, /, **values: Any) -> None:
        self.rows(name, **values)

    def change(self, work: Callable[[], T], *, hurry_s: float | None = None) -> T:
        with transaction(self.connection, self.path):
            self.now_ms, self.now_s = self._clock.now_ms(), self._clock.monotonic_s()
            self._is_changing = True
            try:
                ((self._counted,),) = self.rows("last_event")
                answer = work()
                self.show_openings()
                return answer
            finally:
                self._is_changing = False

    def show_openings(self) -> None:
        self.rows("count_changes", after=self._counted)
        self.rows("open_changed", after=self._counted)
        ((self._counted,),) = self.rows("last_event")

    def nothing_changed(self) -> None:
        """A transaction that wrote nothing costs nothing."""

    def lock_jobs_of(self, task_ids: Sequence[int]) -> list[tuple[int, int]]:
        """Nobody else can change anything."""
        return []

    def openings(
        self, wanted: Wanted, tried: Collection[int], without: Collection[int]
    ) -> Openings:
        if self.rows("any_due"):
            self._unpark()
        paused = {name for (name,) in self.rows("paused")}
        waiting: dict[int, bool] = {}
        for id, code, pipeline, needs, prefers in self.rows("classes"):
            limits = {f"pipeline:{pipeline}", f"label:{needs}", f"label:{prefers}"}
            can_run = needs is None or needs in wanted.offers
            has_code = wanted.runs is None or code in wanted.runs
            if can_run and has_code and id not in without and not paused & limits:
                waiting[id] = prefers is not None and prefers not in wanted.offers
        if wanted.jobs is None:
            ready = heapq.merge(*map(self._ready_of_class, waiting))
        else:
            ready = iter(self.rows("ready_of_jobs", keys=list(wanted.jobs)))
        ((any_limits,),) = self.rows("any_limits")
        found: list[Opening] = []
        for job_id, group in groupby(ready, itemgetter(2)):
            if job_id in tried:
                continue
            if len(found) >= wanted.count:
                return found, True
            for _, _, _, step, kind, revision, state in group:
                if kind in waiting:
                    where = job_id, revision, state, step, kind
                    found.append(Opening(*where, waiting[kind], bool(any_limits)))
        return found, False

    def _unpark(self) -> None:
        """The time of some has come."""
        if self._is_changing:
            self.rows("unpark")
        else:
            self.change(lambda: self.rows("unpark"))

    def _ready_of_class(self, id: int) -> Iterator[Row]:
        """(priority, turn, job, step, ...), the one whose turn it is first, a page at a time."""
        last = {"priority": _FIRST, "turn": 0, "job": 0}
        while True:
            rows = self.rows("ready_of_class", kind=id, limit=_PAGE, **last)
            yield from rows
            if len(rows) < _PAGE:
                return
            last = dict(zip(last, rows[-1], strict=False))

    def pick(self, requests: Sequence[Request], count: int, host: str) -> list[Row]:
        picked: list[Row] = []
        for _, group in groupby(requests, itemgetter(0)):
            rows: list[Row] = []
            for job_id, step, room, since_ms in group:
                where = {"job": job_id, "step": step, "room": room, "since_ms": since_ms}
                rows += self.rows("pick", host=host, **where)
            picked += sorted(rows)[: count - len(picked)]
            if len(picked) >= count:
                break
        return picked

    def lease(self, picked: Sequence[Row], taker: Taker) -> list[Row]:
        values = taker._asdict() | {"lease_s": self.now_s + taker.lease_ttl_s}
        for first, last in spans_of([row[0] for row in picked]):
            self.rows("claim", first=first, last=last, **values)
        self._tell("leased", picked, taker.worker)
        return [
            (job, id, fence, attempt, step, index, key, chunk, lost)
            for id, step, fence, job, _, _, _, index, key, attempt, chunk, lost in picked
        ]

    def take(self, requests: Sequence[Request], count: int, taker: Taker) -> list[Row]:
        picked = self.pick(requests, count, taker.host)
        return self.lease(picked, taker) if picked else []

    def take_turns(
        self, jobs: Sequence[int], starting: Collection[int], emptied: Sequence[tuple[int, int]]
    ) -> None:
        for job_id, step in emptied:
            self.rows("close_step", job=job_id, step=step)
        ((last,),) = self.rows("last_event")
        for rank, id in enumerate(jobs, 1 - len(jobs)):
            self.rows("take_turn", job=id, turn=last + rank)

    def close_openings(self, empty: Sequence[tuple[int, int]]) -> None:
        for job_id, step in empty:
            ((claimable, due, due_s),) = self.rows("next_due", job=job_id, step=step)
            if not claimable:
                self.rows("close_step", job=job_id, step=step)
            elif not due:  # else a limit, a preference or a refusal is in the way
                self.rows("park", job=job_id, step=step, due_s=due_s)

    def insert_tasks(self, job_id: int, rows: Sequence[Row], spans: dict[int, Span]) -> set[int]:
        before = self._tasks_in(job_id, spans)
        self._each("insert_tasks", rows, job_id, self.now_ms)
        after = self._tasks_in(job_id, spans)
        added: Counter[tuple[int, str]] = Counter((row[0], row[4]) for row in rows)
        for (step, state), n in added.items():
            new = after[step][0] - before[step][0] if spans else n
            self.rows("add_count", job=job_id, step=step, state=state, n=new)
        if any(state == TaskState.PENDING for _, state in added):
            self.rows("open_steps", job=job_id)
        return {step for step in spans if after[step] != before[step]}

    def _tasks_in(self, job_id: int, spans: dict[int, Span]) -> dict[int, Row]:
        """How many there are of each step, and another sum than before if one was replaced."""
        return {
            step: self.rows("tasks_in_span", job=job_id, step=step, first=first, last=last)[0]
            for step, (first, last) in spans.items()
        }

    def finish(self, done: Sequence[Completion]) -> list[tuple[int, int, int, int, int]]:
        expected = {(one.task_id, one.fence): one for one in done}
        found = [
            row
            for first, last in spans_of([one.task_id for one in done])
            for row in self.rows("can_end", first=first, last=last)
        ]
        ended = [
            (row, one)
            for row in found
            if (one := expected.get((row[0], row[2]))) is not None
            and one.key in (None, row[8])
            and row[4] in (CLAIMABLE if one.by_receipt else _LATE)
        ]
        self._end([one for _, one in ended])
        self._tell("done", [row for row, _ in ended])
        return [(row[0], row[2], row[3], row[1], row[7]) for row, _ in ended]

    def _end(self, done: Sequence[Completion]) -> None:
        results = {one.result if one.receipt is None else None for one in done}
        if len(results) == 1 and None not in results:
            # Tasks without receipts that have nothing else to say.
            for first, last in spans_of([one.task_id for one in done]):
                self.rows("complete_alike", result=done[0].result, first=first, last=last)
            return
        rows = ((one.task_id, one.result, *receipt_of(one), one.adopted) for one in done)
        self._each("complete", rows, self.now_ms)

    def job_rows(self, name: str, states: Collection[JobState], **values: Any) -> list[Row]:
        # A walk along an index for each state, since one along the index of all is in the order
        # of the states; all of one moment.
        with translated(self.path), self.connection:
            rows = [
                row
                for state in states or (None,)
                for row in self.connection.execute(
                    SQL[name], values | {"state": state, "states": state and as_json([state])}
                )
            ]
        return sorted(rows, reverse=True)  # by id, which no two have

    def task_rows(
        self, job_id: int, states: Collection[TaskState], step: int | None, after: int, limit: int
    ) -> list[Row]:
        # Few are in any state but `done`: they are found by the index of their state, and sorted.
        by_state = bool(states) and TaskState.DONE not in states
        index, order = ("", "+t.id") if by_state else ("INDEXED BY tasks_of_job", "t.id")
        where = f"t.job_id = :job AND {order} > :after"
        if step is not None:
            where += " AND t.step = :step" if by_state else " AND +t.step = :step"
        if states:
            # Spelt as the partial indices spell it, or they would not be used.
            terms = (f"t.state = '{state}'" for state in TaskState if state in states)
            where += f" AND ({' OR '.join(terms)})"
        sql = f"SELECT {SQL['task_columns']} FROM tasks AS t {index} WHERE {where} ORDER BY {order}"
        now = {"now_ms": self._clock.now_ms(), "now_s": self._clock.monotonic_s()}
        values = {"job": job_id, "step": step, "after": after, "limit": limit} | now
        with translated(self.path):
            return self.connection.execute(f"{sql} LIMIT :limit", values).fetchall()

    def ended(self, jobs: Sequence[int]) -> None:
        """Nothing piles up."""

    def tidy(self, jobs: Sequence[int]) -> None:
        """Nothing piles up."""

    def delete(self, job_id: int) -> bool:
        """In bites that nobody has to wait long for.

        There is one writer at a time, and a job may have a million tasks: removed at once, they
        would keep every other writer waiting until it gives up. So the job goes first, with
        everything that could still change, and what is left of it a little at a time. Should this
        process end in between, the next one to delete a job goes on with it.
        """
        if not self.change(lambda: bool(self.rows("delete_job", job=job_id))):
            return False
        for (id,) in self.rows("deleted"):
            self._delete_rest(id)
        return True

    def _delete_rest(self, id: int) -> None:
        for name in ("delete_events", "delete_tasks"):
            removed = DELETE_AT_ONCE
            while removed == DELETE_AT_ONCE:
                began_s = time.monotonic()
                some = partial(self.rows, name, job=id, most=DELETE_AT_ONCE)
                removed = len(self.change(some))
                if removed == DELETE_AT_ONCE:
                    time.sleep(time.monotonic() - began_s)  # others take their turn meanwhile
        self.change(lambda: self.rows("all_deleted", job=id))

    def _each(self, name: str, rows: Iterable[Row], *values: Any) -> None:
        """Run a statement over all of these rows; `values` are those it takes besides."""
        rest = iter(rows)
        for count in _ROWS_AT_ONCE:
            while len(some := list(islice(rest, count))) == count:
                flat = chain.from_iterable(some)
                self.connection.execute(_repeated(name, count), (*flat, *values))
            rest = iter(some)

    def _tell(self, now: str, rows: Sequence[Row], by: str | None = None) -> None:
        """Append the events of tasks that change, given as they are before; `by` a worker."""
        alike: dict[_Told, list[int]] = defaultdict(list)
        for told, some in groupby(rows, _TOLD):  # mostly one run
            alike[told] += map(itemgetter(0), some)
        for (fence, job_id, step, was, worker, message), ids in alike.items():
            values = {"n": len(ids), "tasks": ids, "now": now, "job": job_id, "step": step}
            values |= {"was": was, "fence": fence, "worker": by or worker, "message": message}
            self.rows("insert_events", **values)
