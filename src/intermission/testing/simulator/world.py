"""What the processes of a simulation share: clock, store, ledgers, and the book about it all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from intermission.backends.store.memory import MemoryStore
from intermission.model import Completion, Job, JobState
from intermission.ports.ledger import Ledger
from intermission.testing.clock import FakeClock
from intermission.testing.simulator.audit import Audit
from intermission.testing.simulator.blame import Blame
from intermission.testing.simulator.ledgers import Ledgers
from intermission.testing.simulator.wire import Cut


class World:
    """The jobs of one workspace, and everything that ever happened in it."""

    def __init__(
        self,
        scratch: Path,
        make_ledgers: Callable[[FakeClock], Ledgers],
        jobs: Sequence[Job],
        random: Random,
    ) -> None:
        self.scratch = scratch
        self.jobs = jobs
        self.random = random
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.outputs = MemoryStore(self.clock)
        self.blame = Blame(self.clock, jobs)
        self.audit = Audit(self.store, jobs, self.blame)
        self.ledgers = make_ledgers(self.clock)
        self.place: Any = self.ledgers.create()
        """The ledger that a process finds when it starts."""
        self.cuts: dict[str, Cut] = {}
        """By wire, what nobody reaches."""
        self.sent: list[tuple[Any, Sequence[Completion]]] = []
        """Completions that are on record somewhere in the network, to arrive once more."""
        self.trace: list[str] = []
        self._connections: dict[tuple[str, Any], Ledger] = {}

    def ledger(self, who: str, place: Any) -> Ledger:
        """The connection that somebody has to a ledger."""
        if (who, place) not in self._connections:
            self._connections[who, place] = self.ledgers.open(place)
        return self._connections[who, place]

    def ledger_call(self, who: str, place: Any, method: str, *args: Any, **options: Any) -> Any:
        """A call that the audit sees."""
        return self.audit.ledger_call(place, self.ledger(who, place), method, *args, **options)

    def outputs_call(self, method: str, *args: Any, **options: Any) -> Any:
        return getattr(self.outputs, method)(*args, **options)

    def states(self) -> dict[str, JobState | None]:
        """By the key of every job, its state in the ledger there is now; None for none."""
        ledger = self.ledger("reader", self.place)
        found = {row.job.key: row.state for row in ledger.jobs()}
        return {job.key: found.get(job.key) for job in self.jobs}

    def lead_to(self, place: Any) -> None:
        """Another ledger is in the place of the one there was."""
        self.place = place
        self.audit.ledger_was_replaced = True

    def note(self, line: str) -> None:
        self.trace.append(f"{self.clock.monotonic_s():.3f} {line}")

    def close(self) -> None:
        for ledger in self._connections.values():
            ledger.close()
