"""How far a job is in each of its groups, such as the renditions of a video: only looks.

A pipeline says by which field of a chunk its tasks are told apart. A group that was asked for and
makes no sense has no tasks; a step's result says which those are, and why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from intermission.model import Event, Groups, Job, StepSpec, TaskRow, TaskState
from intermission.operations.documents import GroupDocument, GroupState
from intermission.ports.ledger import Ledger, every_task, output_of


def groups_of(ledger: Ledger, job: Job) -> list[GroupDocument]:
    """Every group of a job, as it is now: 360p, 720p, 1080p."""
    found = [group for spec in job.steps if spec.groups for group in _groups(ledger, job, spec)]
    return sorted(found, key=lambda group: (group.step, _natural(group.name)))


def _groups(ledger: Ledger, job: Job, spec: StepSpec) -> Iterator[GroupDocument]:
    assert spec.groups is not None
    by, size = spec.groups.by, spec.groups.size
    members: dict[str, list[tuple[TaskRow, int]]] = {}
    for task in every_task(ledger, job.key, step=spec.name):
        chunk = json.loads(task.chunk or "{}")
        members.setdefault(str(chunk[by]), []).append((task, int(chunk[size]) if size else 1))
    common: dict[str, Any] = {"step": spec.name, "by": by, "unit": size or "tasks"}
    for name, tasks in members.items():
        done = sum(parts for task, parts in tasks if task.state is TaskState.DONE)
        total = sum(parts for _, parts in tasks)
        state, reason = _state([task for task, _ in tasks])
        how_far = {"done": done, "total": total}
        yield GroupDocument(name=name, state=state, reason=reason, **how_far, **common)
    for one in _skipped(ledger, job, spec.groups):
        told: dict[str, Any] = {"name": str(one["name"]), "reason": str(one["reason"])}
        yield GroupDocument(state=GroupState.SKIPPED, done=0, total=0, **told, **common)


def _state(tasks: Sequence[TaskRow]) -> tuple[GroupState, str | None]:
    for state, said in (
        (TaskState.FAILED, GroupState.FAILED),
        (TaskState.CANCELLED, GroupState.CANCELLED),
    ):
        ended = next((task for task in tasks if task.state is state), None)
        if ended is not None:
            return said, ended.message
    if all(task.state is TaskState.DONE for task in tasks):
        return GroupState.COMPLETED, None
    waiting = (TaskState.PENDING, TaskState.BLOCKED)
    if all(task.state in waiting for task in tasks):
        return GroupState.PENDING, None
    return GroupState.IN_PROGRESS, None


def _skipped(ledger: Ledger, job: Job, groups: Groups) -> list[dict[str, Any]]:
    output = output_of(ledger, job.key, groups.skipped) if groups.skipped else None
    if output is None or not output.result:
        return []
    return json.loads(output.result)["skipped"]


def _natural(name: str) -> list[tuple[int, str]]:
    """Numbers in a name count as numbers: 720p before 1080p."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


class GroupNews:
    """What has changed in the groups of one job since the last look."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._steps = tuple(f"{spec.name}[" for spec in job.steps if spec.groups)
        self._known: set[GroupDocument] = set()

    def concerning(self, events: Iterable[Event]) -> list[Event]:
        """Those of these events that may have changed a group."""
        return [event for event in events if event.task and event.task.startswith(self._steps)]

    def after(self, ledger: Ledger, events: Iterable[Event]) -> list[GroupDocument]:
        """The groups that are not what they were, if one of these events may have changed any."""
        if not self.concerning(events):
            return []
        found = groups_of(ledger, self._job)
        changed = [group for group in found if group not in self._known]
        self._known = set(found)
        return changed
