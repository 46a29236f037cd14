"""A simulated `run` process: the real engine between a wire to the store and one to the ledger.

It does what a worker with one slot does, in one actor: submit or continue the job, rescue,
claim, run tasks, record how they end. Its keeper is the real one, ticked by the simulation.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from intermission.engine import record
from intermission.engine.keeper import Held, Keeper
from intermission.engine.outcome import Failed, Faulted, Finished, Outcome, Spoiled
from intermission.engine.plan import expand, with_gaps
from intermission.engine.rebuild import remember_job
from intermission.engine.run_task import Hooks, Work, gaps, run_task
from intermission.engine.verify import verify
from intermission.engine.workspace import Workspace
from intermission.errors import (
    CorruptArtifact,
    EnvironmentFault,
    IntermissionError,
    LedgerError,
    StoreError,
)
from intermission.model import JobState, Lease
from intermission.telemetry import reached
from intermission.testing.simulator.actor import Actor
from intermission.testing.simulator.talk import TALK

if TYPE_CHECKING:
    from intermission.testing.simulator.simulation import Simulation

LEASE_TTL_S = 8.0
RENEW_EVERY_S = 2.0
POLL_S = 1.0
RETRY_DELAYS_S = (0.5, 2.0)
ENDED = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)

_LOG = logging.Logger("simulated")
_STORE_CALLS = {"create", "replace", "read", "fetch", "stat", "list", "move", "delete"}
_SILENT = {"close", "uri", "local_path", "presign"}


class SlotKilled(BaseException):
    """The slot's process ended in the middle of a task, but not the worker's."""


class Wire:
    """One process's connection. Each call is an instant at which anything may happen."""

    def __init__(self, process: Process, kind: str, call: Callable[..., Any]) -> None:
        self._process = process
        self._kind = kind
        self._call = call

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            if name in _SILENT:
                return self._call(name, *args, **options)
            self._process.pause(f"{self._kind}.{name} {_brief(args)}")
            self._process.suffer(self._kind, "before")
            result = self._call(name, *args, **options)
            self._process.suffer(self._kind, "after")
            return result

        return call


def _brief(args: tuple[Any, ...]) -> str:
    """The first argument, without what differs from run to run."""
    first = args[0] if args and isinstance(args[0], str) else ""
    kind, _, rest = first.partition("/")
    return kind if kind == "quarantine" else f"{kind}/{rest[:16]}"


class Process:
    """One process, from its start to its end or its death."""

    def __init__(self, sim: Simulation, name: str, random: Random, *, thorough: bool) -> None:
        self.name = name
        self.sim = sim
        self.stalled_until_s = 0.0
        self.sleeping_until_s = 0.0
        self.ticked_s = sim.clock.monotonic_s()
        self.draining = False
        self.armed: tuple[str, str] | None = None
        """A fault in waiting: which wire, and whether before or after the call takes effect."""
        self.fails_next = False
        """The next step to run raises."""
        self.repeats_next = False
        """The next completion is sent twice."""
        self._place = sim.place
        self._ledger: Any = None
        self._running: Lease | None = None
        self._kill_slot = ""
        self._random = random
        self._thorough = thorough
        self._capacity = random.randint(1, 3)
        self._one_by_one = random.random() < 0.5
        self._scratch = sim.scratch
        self.store: Any = Wire(self, "store", sim.audit.store_call)
        self.outputs: Any = Wire(self, "outputs", lambda name, *a, **o: getattr(sim.outputs, name)(*a, **o))
        self.ledger: Any = Wire(self, "ledger", self._ledger_call)
        self._work = Work(sim.job, TALK, self.store, self.outputs, self._scratch, name)
        self.keeper = Keeper(
            name,
            sim.clock,
            lease_ttl_s=LEASE_TTL_S,
            renew_every_s=RENEW_EVERY_S,
            on_lost=self._lost,
            on_cancelled=self._cancelled,
        )
        self.actor = Actor(name, self._run)

    # wires are filled in below
