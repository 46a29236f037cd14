"""The simulation: a seed decides who runs next, how time passes, and what goes wrong when.

Each seed plays with a few kinds of faults only, so that those it has meet each other often: on a
fleet that shares a ledger, or between commands that run on one machine. When its faults are used
up everything behaves, and the jobs must come to their end.
"""

from __future__ import annotations

import math
import random as global_random
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from unittest.mock import patch
from uuid import UUID

from intermission.engine import receipt
from intermission.model import JobState, TaskRow, TaskState
from intermission.telemetry import listen
from intermission.testing.clock import FakeClock, OwnClock
from intermission.testing.faults import Crashed
from intermission.testing.simulator.audit import Violation
from intermission.testing.simulator.fault_injector import (
    AIMED,
    CRITICAL,
    FAULTS,
    UPGRADES,
    FaultInjector,
)
from intermission.testing.simulator.final_checks import Results, check_end
from intermission.testing.simulator.host import Host
from intermission.testing.simulator.ledgers import Ledgers
from intermission.testing.simulator.maintenance_actor import Rebuilder, Submitter
from intermission.testing.simulator.process import Process, here
from intermission.testing.simulator.sample_pipeline import NEWER_TALK, NOTE, TALK, job_of, talk_job
from intermission.testing.simulator.slots import SimulatedSlot
from intermission.testing.simulator.worker import Command, FleetWorker, SimulatedWorker
from intermission.testing.simulator.world import World

TURNS_MAX = 20_000
"""Jobs that are not done by then are stuck."""
_STOPPED = (None, JobState.FAILED, JobState.CANCELLED)


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
    mixed: bool = False,
) -> Report:
    """Play one seed. Raises `Violation` with the seed and what led to it.

    A fleet is mixed when its hosts have not all the same pipelines; upgrades make it so.
    """
    random = Random(seed)
    some = random.sample(sorted(faults), min(len(faults), random.randint(1, 5)))
    jobs = [talk_job()]
    if mixed or not UPGRADES.isdisjoint(some):
        jobs += [job_of(NEWER_TALK, "lecture"), job_of(NOTE, "paper")]
    world = World(scratch, make_ledgers, jobs, random)
    simulation = _Simulation(world, random, some)
    try:
        with _determined(seed), listen(_passing):
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


@contextmanager
def _determined(seed: int) -> Iterator[None]:
    """What the product draws by chance hangs on the seed, too."""
    names = Random(seed)
    before = global_random.getstate()
    global_random.seed(seed)
    try:
        with patch.object(receipt, "uuid4", lambda: UUID(int=names.getrandbits(128))):
            yield
    finally:
        global_random.setstate(before)


def _passing(point: str) -> None:
    """The engine passed a fault point in some thread."""
    if (process := here()) is not None:
        process.pause(f"point {point}")
        if point == "before-step" and isinstance(process, SimulatedSlot):
            process.executes()


class _Simulation:
    def __init__(self, world: World, random: Random, faults: Collection[str]) -> None:
        self._world = world
        self._random = random
        self._is_fleet = len(world.jobs) > 1 or random.random() < 0.7
        self._hosts = self._make_hosts(3 if self._is_fleet else 1)
        self._injector = FaultInjector(world, random, self._hosts, self._start)
        some = list(faults)
        # What makes two workers hold one task meets every other fault more often.
        some += [kind for kind in ("crash", "stall") if kind in faults and random.random() < 0.5]
        self._left = [random.choice(some) for _ in range(random.randint(4, 20) if some else 0)]
        self._rate = random.choice([0.02, 0.05, 0.15])
        self._patience = random.choice([1, 1, 4, 16])
        self._wanted = random.randint(1, 4)
        if not AIMED.isdisjoint(faults):
            self._wanted = max(2, self._wanted)  # it takes two
        self._alive: list[Process] = []
        self.turns = 0
        self.done: Counter[str] = Counter()

    def _make_hosts(self, count: int) -> list[Host]:
        """Each has all that jobs need, unless there are two versions of something."""
        world, random = self._world, self._random
        talks = (
            [TALK]
            if len(world.jobs) == 1
            else [TALK, NEWER_TALK, random.choice([TALK, NEWER_TALK])]
        )
        hosts: list[Host] = []
        for no in range(count):
            clock = OwnClock(world.clock, random.uniform(0, 1e6))
            host = Host(f"host{no}", world.scratch, clock, talks[no % len(talks)])
            if random.random() < 0.6:
                host.install(NOTE)
            hosts.append(host)
        return hosts

    def run(self) -> None:
        """Until the jobs are done and everybody has left; then once more, looking closely.

        Some seeds then lose the ledger, and nothing that has a receipt may run again.
        """
        self._play()
        self._left = []
        self._look_closely()
        self._play()
        if self.done and self._random.random() < 0.2:
            self._world.lead_to(self._world.ledgers.create())
            self._start(Rebuilder)
            self._play()

    def _look_closely(self) -> None:
        if self._is_fleet:
            for job in self._world.jobs:
                self._start(partial(Submitter, job=job, thorough=True))
        else:
            self._start(partial(Command, thorough=True))

    def _play(self) -> None:
        while self._turn():
            self.turns += 1
            if self.turns > TURNS_MAX:
                raise Violation(f"the jobs do not come to their end: {self._unfinished()}")

    def _unfinished(self) -> list[TaskRow]:
        ledger = self._world.ledger("reader", self._world.place)
        rows = [row for job in self._world.jobs for row in ledger.tasks(job.key)]
        return [row for row in rows if row.state is not TaskState.DONE]

    def close(self) -> None:
        for process in self._alive:
            process.kill()
            process.leave()

    def _start(self, kind: Callable[[World, str, Host], Process], host: Host | None = None) -> None:
        name = f"p{len(self._injector.processes)}"
        process = kind(self._world, name, host or self._random.choice(self._hosts))
        self._add(process)

    def _add(self, process: Process) -> None:
        self._injector.processes.append(process)
        self._alive.append(process)
        self._world.note(f"{process.name} starts on {process.host.name}")

    def _turn(self) -> bool:
        """Let something happen. False when everything is done and everybody has left."""
        self._bury()
        self._injector.look_after()
        is_over = self._is_over()
        if is_over and not self._go_home():
            return False
        if not is_over:
            self._keep_company()
            if self._left and (self._is_chance() or self._random.random() < self._rate):
                self._break_something()
                self._bury()
        self._let_somebody_run()
        return True

    def _is_over(self) -> bool:
        """The jobs are done; faults that are left may still find something, for a while."""
        if any(process.is_busy for process in self._alive):
            return False
        done = all(state is JobState.DONE for state in self._world.states().values())
        return done and (not self._left or self._random.random() < 0.1)

    def _go_home(self) -> bool:
        """The jobs are done: workers of a fleet are asked to leave. Whether anybody is here."""
        for process in self._alive:
            if isinstance(process, FleetWorker) and not process.draining:
                process.drain()
        return bool(self._alive)

    def _bury(self) -> None:
        """Take note of who has ended, and end those that were killed."""
        now_s = self._world.clock.monotonic_s()
        for process in list(self._alive):
            if isinstance(process, SimulatedWorker):
                started, process.children = process.children, []
                for slot in started:
                    self._add(slot)
            if process.dies_at_s <= now_s:
                process.kill()
            if process.ended:
                self._alive.remove(process)
                self._ended(process)

    def _ended(self, process: Process) -> None:
        process.leave()
        if isinstance(process, SimulatedSlot):
            if not process.worker.ended:
                process.worker.reaper.is_dead(process)
        elif isinstance(process, FleetWorker) and not (process.was_killed or process.draining):
            raise Violation(f"{process.name} left the fleet by itself")

    def _keep_company(self) -> None:
        """People start workers, and submit again what has stopped."""
        workers = [one for one in self._alive if isinstance(one, SimulatedWorker)]
        if not self._is_fleet:
            if len(workers) < self._wanted and self._random.random() < (0.05 if workers else 0.2):
                self._start(partial(Command, thorough=self._random.random() < 0.3))
            return
        if not workers or (len(workers) < self._wanted and self._random.random() < 0.05):
            self._start(FleetWorker)
        elif not self._left or self._random.random() < 0.02:
            self._see_that_all_can_run(workers)
        if self._random.random() < 0.1 and not any(
            isinstance(one, Submitter) for one in self._alive
        ):
            states = self._world.states()
            stopped = [job for job in self._world.jobs if states[job.key] in _STOPPED]
            if stopped:
                thorough = self._random.random() < 0.3
                self._start(partial(Submitter, job=self._random.choice(stopped), thorough=thorough))

    def _see_that_all_can_run(self, workers: list[SimulatedWorker]) -> None:
        """In the end there is a worker for every job, on a host that has its code."""
        for one in workers:
            if one.place != self._world.place and not one.draining:
                one.drain()  # it works on a ledger that nobody sees any more
        workers = [one for one in workers if not one.draining]
        for job in self._world.jobs:
            if not any(job.code in one.codes & one.host.codes for one in workers):
                host = self._hosts[job.code == NEWER_TALK.code]
                host.install(next(one for one in (TALK, NEWER_TALK, NOTE) if one.code == job.code))
                self._start(FleetWorker, host)
                return

    def _let_somebody_run(self) -> None:
        clock, now_s = self._world.clock, self._world.clock.monotonic_s()
        awake = [one for one in self._alive if one.stalled_until_s <= now_s]
        actors = [(one, actor) for one in awake for actor in one.actors if not actor.ended]
        ready = [(one, actor) for one, actor in actors if actor.wakes_at_s <= now_s]
        if not ready:
            self._pass_time(now_s)
            return
        # Processes do not wait for each other: where many are at work, each turn takes less.
        clock.advance(self._random.choice([0.001, 0.01, 0.1, 0.1, 0.5]) * min(1.0, 4 / len(ready)))
        process, actor = self._random.choice(ready)
        actor.resume(self._random.randint(1, self._patience))
        if self._world.audit.violation is not None:
            raise self._world.audit.violation
        if actor.error is not None and not isinstance(actor.error, Crashed):
            story = "".join(traceback.format_exception(actor.error))
            raise Violation(f"{process.name} ended with an error:\n{story}") from actor.error

    def _pass_time(self, now_s: float) -> None:
        """Nobody has anything to do. Where nobody has a task either, much of it."""
        if not any(one.is_busy for one in self._alive):
            self._world.clock.advance(self._random.uniform(1.0, 30.0))
            return
        times_s = [one.stalled_until_s for one in self._alive]
        times_s += [one.dies_at_s for one in self._alive]
        times_s += [actor.wakes_at_s for one in self._alive for actor in one.actors]
        wait_s = min((at_s for at_s in times_s if now_s < at_s < math.inf), default=now_s) - now_s
        self._world.clock.advance(wait_s + self._random.uniform(0.01, 0.2))

    def _is_chance(self) -> bool:
        """Whether the next fault waits for a critical point, and somebody is at one."""
        return self._left[-1] in AIMED and bool(self._at_critical_points())

    def _at_critical_points(self) -> list[Process]:
        now_s = self._world.clock.monotonic_s()
        awake = [one for one in self._alive if one.stalled_until_s <= now_s]
        return [one for one in awake if one.where.endswith(CRITICAL)]

    def _break_something(self) -> None:
        if not self._alive:
            return
        kind = self._left[-1]
        critical = self._at_critical_points()
        is_aimed = critical and self._random.random() < 0.5
        victim = self._random.choice(critical if is_aimed else self._alive)
        where = victim.where
        if getattr(self._injector, kind)(victim):
            self._left.pop()
            self.done[kind] += 1
            self._world.note(f"FAULT {kind} {victim.name} at {where}")
        else:
            self._random.shuffle(self._left)
