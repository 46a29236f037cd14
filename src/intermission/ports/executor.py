"""The executor as the worker sees it: where claimed tasks run.

An executor has slots. A slot runs one batch at a time and can be killed alone. The worker's own
thread calls everything here but `kill`, which any thread may call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from intermission.model import Lease
from intermission.ports.slot_protocol import Inputs, JobContext, Results


class Said(NamedTuple):
    """A slot answered for tasks of its batch, or reported progress."""

    run: int
    results: Results


class SlotEnded(NamedTuple):
    """A slot is gone with whatever it had not answered for: it crashed, or it was killed."""

    run: int
    how: str
    may_be_the_tasks: bool = True
    """False where the slot was lost for reasons of the executor: no attempt is used."""


class Executor(Protocol):
    """Slots, whatever they are. A batch in a slot is a run, known by a number."""

    @property
    def idle(self) -> int:
        """How many more batches could be started now."""
        ...

    def start(
        self, context: JobContext, leases: Sequence[Lease], inputs: Mapping[int, Inputs]
    ) -> int:
        """Run a batch in an idle slot; the number of the run. `inputs` are by task.

        A run is over when each of its tasks was answered for, or its slot ended. What walking
        along the inputs raises is raised here, and nothing was started.
        """
        ...

    def cancel(self, run: int, task_id: int) -> None:
        """Tell a running task that nobody wants its result."""
        ...

    def kill(self, run: int) -> None:
        """Kill the slot of a run with everything it started; nothing, if the run is over.

        For any thread. `events` will say that it ended.
        """
        ...

    def fileno(self) -> int:
        """For `select`: readable while `events` has something to tell."""
        ...

    def events(self) -> list[Said | SlotEnded]:
        """What happened since the last call, in order; never waits."""
        ...

    def close(self) -> None:
        """Kill every slot, and wait until nothing of them is left."""
        ...
