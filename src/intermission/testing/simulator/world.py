"""What the processes of a simulation share: clock, store, ledgers, and the book about it all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intermission.backends.store.memory import MemoryStore
from intermission.model import Completion, Job, Lease
from intermission.ports.ledger import Ledger
from intermission.testing.clock import FakeClock
from intermission.testing.simulator.audit import Audit
from intermission.testing.simulator.ledgers import Ledgers
from intermission.testing.simulator.sample_pipeline import talk_job

if TYPE_CHECKING:
    from intermission.testing.simulator.process import Process


class World:
    """One workspace, and everything that ever happened in it."""

    def __init__(self, scratch: Path, make_ledgers: Callable[[FakeClock], Ledgers]) -> None:
        self.scratch = scratch
        self.job: Job = talk_job()
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.outputs = MemoryStore(self.clock)
        self.audit = Audit(self.store, self.job)
        self.ledgers = make_ledgers(self.clock)
        self.place: Any = self.ledgers.create()
        """The ledger that a process finds when it starts."""
        self.dead: set[str] = set()
        """Workers whose death is proven."""
        self.sent: list[tuple[Process, Lease, Completion]] = []
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

    def note(self, line: str) -> None:
        self.trace.append(f"{self.clock.monotonic_s():.3f} {line}")

    def close(self) -> None:
        for ledger in self._connections.values():
            ledger.close()
