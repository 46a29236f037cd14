"""The simulation: a seed decides who runs next, how time passes, and what goes wrong when.

Each seed plays with a few kinds of faults only, so that those it has meet each other often.
When its faults are used up everything behaves, and the job must come to its end.
"""

from __future__ import annotations

import threading
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from intermission.engine.lease_renewer import TICK_S
from intermission.model import JobState
from intermission.telemetry import listen
from intermission.testing.clock import FakeClock
from intermission.testing.faults import Crashed
from intermission.testing.simulator.audit import Violation
from intermission.testing.simulator.fault_injector import FAULTS, Mischief
from intermission.testing.simulator.final_checks import Results, check_end
from intermission.testing.simulator.ledgers import Ledgers
from intermission.testing.simulator.maintenance_actor import Rebuilder
from intermission.testing.simulator.process import Process
from intermission.testing.simulator.worker import Worker
from intermission.testing.simulator.world import World

TURNS_MAX = 30_000
"""A job that is not done by then is stuck."""


@dataclass(frozen=True)
class Report:
    """What a simulation that found nothing wrong has seen."""

    seed: int
    turns: int
    results: Results
    executions: Counter[str]
    faults: Counter[str]
    counts: Counter[str]
    trace: list[str]


def simulate(
    seed: int,
    scratch: Path,
    make_ledgers: Callable[[FakeClock], Ledgers],
    *,
    faults: Collection[str] = FAULTS,
    expected: Results | None = None,
) -> Report:
    """Play one seed. Raises `Violation` with the seed and what led to it."""
    world = World(scratch, make_ledgers)
    simulation = _Simulation(world, Random(seed), faults)
    try:
        with listen(simulation.passing):
            simulation.run()
        results = check_end(world, expected)
    except (Violation, AssertionError) as e:
        story = "\n".join(world.trace[-60:])
        raise Violation(f"seed {seed}: {e}\nThe last steps were:\n{story}") from e
    finally:
        simulation.close()
        world.close()
    return Report(
        seed,
        simulation.turns,
        results,
        world.audit.executions,
        simulation.done,
        world.audit.counts,
        world.trace,
    )


class _Simulation:
    def __init__(self, world: World, random: Random, faults: Collection[str]) -> None:
        self._world = world
        self._random = random
        self._mischief = Mischief(world, random, self._start)
        some = random.sample(sorted(faults), min(len(faults), random.randint(1, 5)))
        # What makes two workers hold one task meets every other fault more often.
        some += [kind for kind in ("crash", "stall") if kind in faults and random.random() < 0.5]
        self._left = [random.choice(some) for _ in range(random.randint(4, 20) if some else 0)]
        self._rate = random.choice([0.02, 0.05, 0.15])
        self._patience = random.choice([1, 1, 4, 16])
        self._wanted = random.randint(1, 4)
        self._by_thread: dict[threading.Thread, Process] = {}
        self.turns = 0
        self.done: Counter[str] = Counter()

    def passing(self, point: str) -> None:
        """The engine passed a fault point in some thread."""
        process = self._by_thread.get(threading.current_thread())
        if process is not None:
            process.pause(f"point {point}")

    def run(self) -> None:
        """Until the job is done and everybody has left; then once more, looking closely.

        Some seeds then lose the ledger, and nothing that has a receipt may run again.
        """
        self._play()
        self._left = []
        self._start_worker(thorough=True)
        self._play()
        if self.done and self._random.random() < 0.2:
            self._world.place = self._world.ledgers.create()
            self._start(Rebuilder)
            self._play()

    def _play(self) -> None:
        while self._alive() or not self._is_done():
            self._turn()

    def close(self) -> None:
        for process in self._mischief.processes:
            process.actor.kill()

    def _alive(self) -> list[Process]:
        alive: list[Process] = []
        for process in self._mischief.processes:
            if not process.actor.ended:
                alive.append(process)
            elif process.is_local:
                self._world.dead.add(process.name)
        return alive

    def _is_done(self) -> bool:
        rows = self._world.ledger("reader", self._world.place).jobs(self._world.job.key)
        return bool(rows) and rows[0].state is JobState.DONE

    def _start(self, kind: Callable[[World, str], Process]) -> None:
        process = kind(self._world, f"p{len(self._mischief.processes)}")
        self._by_thread[process.actor.thread] = process
        self._mischief.processes.append(process)
        self._world.note(f"{process.name} starts")

    def _start_worker(self, *, thorough: bool) -> None:
        """Somebody runs the same command again, or another one beside it."""
        self._start(partial(Worker, random=self._random, thorough=thorough))

    def _turn(self) -> None:
        self.turns += 1
        if self.turns > TURNS_MAX:
            raise Violation("the job does not come to its end")
        alive = self._alive()
        if not alive or (len(alive) < self._wanted and self._random.random() < 0.05):
            self._start_worker(thorough=self._random.random() < 0.3)
            alive = self._alive()
        if self._left and self._random.random() < self._rate:
            self._break_something(alive)
        clock, now_s = self._world.clock, self._world.clock.monotonic_s()
        awake = [one for one in self._alive() if one.stalled_until_s <= now_s]
        for process in awake:
            if process.ticks_at_s <= now_s and self._random.random() < 0.5:
                process.ticks_at_s = now_s + TICK_S
                process.tick()
        ready = [one for one in awake if one.sleeping_until_s <= now_s]
        if not ready:
            clock.advance(self._random.uniform(0.2, 1.0))
            return
        clock.advance(self._random.choice([0.001, 0.01, 0.1, 0.1, 0.5]))
        self._let_run(self._random.choice(ready))

    def _let_run(self, process: Process) -> None:
        process.actor.resume(self._random.randint(1, self._patience))
        if self._world.audit.violation is not None:
            raise self._world.audit.violation
        error = process.actor.error
        if error is not None and not isinstance(error, Crashed):
            story = "".join(traceback.format_exception(error))
            raise Violation(f"{process.name} ended with an error:\n{story}") from error

    def _break_something(self, alive: list[Process]) -> None:
        kind = self._left[-1]
        victim = self._random.choice(alive)
        if getattr(self._mischief, kind)(victim):
            self._left.pop()
            self.done[kind] += 1
            self._world.note(f"FAULT {kind} {victim.name} at {victim.actor.where}")
        else:
            self._random.shuffle(self._left)
