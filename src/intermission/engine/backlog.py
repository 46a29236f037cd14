"""What a worker has claimed and not handed to a slot yet, and which of it runs well together."""

from __future__ import annotations

import json
import operator
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, takewhile
from typing import Any

from intermission.engine.step_stats import StepStats
from intermission.model import StepSpec
from intermission.ports.work_source import Claimed, ClaimedJob

BATCH_S = 0.1
"""Tasks that together take about this long are claimed for one slot at once."""
BATCH_MAX = 2048
TOGETHER_MAX = 16
"""As many tasks of one chunk, at most, run together in one slot."""
HasRoom = Callable[[StepSpec], bool]


def stats_name(job: ClaimedJob, step: str) -> str:
    """A step, among those of all pipelines that a worker runs."""
    return f"{job.job.pipeline}/{step}"


class Backlog:
    """In the order in which it was claimed; `stats` tell how long tasks take."""

    def __init__(self, stats: StepStats) -> None:
        self._stats = stats
        self._claimed: deque[Claimed] = deque()
        self._has_groups = self._has_limits = False
        """Whether the jobs that were claimed from last have tasks that share a decode, and steps
        of which only so many may run at a time."""

    def __len__(self) -> int:
        return len(self._claimed)

    def extend(self, claimed: Sequence[Claimed]) -> None:
        if claimed:
            jobs = {one.job.name: one.job.job for one in claimed}
            specs = [spec for job in jobs.values() for spec in job.steps]
            self._has_groups = any(spec.batch_by for spec in specs)
            self._has_limits = bool(self._claimed) and self._has_limits
            self._has_limits |= any(spec.concurrency is not None for spec in specs)
        self._claimed.extend(claimed)

    def jobs(self) -> set[str]:
        """The names of the jobs it has tasks of."""
        return {one.job.name for one in self._claimed}

    def drop(self, job: str, task_id: int, fence: int) -> None:
        """This lease was lost; a later one of its task may be here by now."""
        lost = job, task_id, fence
        self._claimed = deque(
            one
            for one in self._claimed
            if (one.job.name, one.lease.task_id, one.lease.fence) != lost
        )

    def take_all(self) -> list[Claimed]:
        taken, self._claimed = list(self._claimed), deque()
        return taken

    def room(self, idle: int, has_room: HasRoom) -> int:
        """How many more leases are worth claiming for this many idle slots."""
        size = max(TOGETHER_MAX if self._has_groups else 1, _batch_size(self._stats.recent_s))
        return max(0, idle * size - len(self.ready(has_room)))

    def ready(self, has_room: HasRoom) -> Sequence[Claimed]:
        """What a slot could be given now."""
        if not self._has_limits:
            return self._claimed
        specs = {(one.job.name, one.lease.step): one.job.job for one in self._claimed}
        full = {at for at, job in specs.items() if not has_room(job.step(at[1]))}
        if not full:
            return self._claimed
        return [one for one in self._claimed if (one.job.name, one.lease.step) not in full]

    def next_batch(self, has_room: HasRoom, *, is_quiet: bool = True) -> list[Claimed]:
        """One task; or some of one step that is not durable; or some that share a decode.

        A task that was tried before, or has a time-out, runs alone, so that a crash or a
        time-out is surely its own. Those that share a decode part at the last attempt. One that
        must have nothing beside it waits, and what came after it too, until it is quiet.
        """
        ready = self.ready(has_room)
        if not ready:
            return []
        first = ready[0]
        if first.lease.alone and not is_quiet:
            return []
        spec = first.job.job.step(first.lease.step)
        batch = [first]
        if spec.batch_by and _may_share(first, spec):
            batch = _sharing(first, spec, ready)
        elif not spec.durable and _is_first_try(first, spec):
            most = _batch_size(self._stats.mean_s(stats_name(first.job, spec.name)))
            batch = _leading(first, spec, ready, most)
        if all(map(operator.is_, self._claimed, batch)):
            for _ in batch:
                self._claimed.popleft()
            return batch
        taken = {(one.job.name, one.lease.task_id) for one in batch}
        self._claimed = deque(
            one for one in self._claimed if (one.job.name, one.lease.task_id) not in taken
        )
        return batch


def _may_share(one: Claimed, spec: StepSpec) -> bool:
    return one.lease.attempt < spec.attempts and not one.lease.alone


def _is_first_try(one: Claimed, spec: StepSpec) -> bool:
    return one.lease.attempt == 1 and _may_share(one, spec) and spec.timeout_s is None


def _leading(first: Claimed, spec: StepSpec, ready: Iterable[Claimed], most: int) -> list[Claimed]:
    """The first tries of one step that lead the line."""
    job, step = first.job, spec.name
    return [
        *takewhile(
            lambda one: one.job is job and one.lease.step == step and _is_first_try(one, spec),
            islice(ready, most),
        )
    ]


def _sharing(first: Claimed, spec: StepSpec, ready: Iterable[Claimed]) -> list[Claimed]:
    """The first task, and those of its step whose chunks agree with its own."""
    wanted = _group(first, spec)
    agreeing = [
        one
        for one in ready
        if one.job.name == first.job.name
        and one.lease.step == spec.name
        and _may_share(one, spec)
        and _group(one, spec) == wanted
    ]
    return agreeing[:TOGETHER_MAX]


def _group(one: Claimed, spec: StepSpec) -> tuple[Any, ...]:
    chunk = json.loads(one.lease.chunk or "{}")
    return tuple(chunk[name] for name in spec.batch_by)


def _batch_size(mean_s: float | None) -> int:
    return 1 if mean_s is None else max(1, min(BATCH_MAX, int(BATCH_S / max(mean_s, 1e-6))))
