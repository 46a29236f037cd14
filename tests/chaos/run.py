"""A run from its first process to the verdict."""

from __future__ import annotations

import heapq
import itertools
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from chaos import judge
from chaos.commands import ref, run_command
from chaos.customers import Asked, Customers
from chaos.facts import ENDED, Facts, gather, jobs_of
from chaos.fleet import HOSTS, Fleet, until
from chaos.journal import Journal
from chaos.schedule import faults, submissions
from chaos.strike import Striker
from chaos.watcher import Watcher, digest

DRAIN_S = 600.0
"""How long the fleet may take to finish what was asked for, once nothing goes wrong any more."""
TIDY_S = 120.0
"""How long workers may take to clean their scratch after the last task."""


@dataclass(frozen=True)
class Outcome:
    """What a run found: nothing wrong is an empty list for every check."""

    seed: int
    wrong: Mapping[str, list[str]]
    counts: Mapping[str, object]
    log: Path

    @property
    def is_sound(self) -> bool:
        return not any(self.wrong.values())

    def told(self) -> str:
        lines = [f"seed {self.seed}; what happened is in {self.log}"]
        lines += [f"  {name}: {value}" for name, value in self.counts.items()]
        for check, wrong in self.wrong.items():
            lines.append(
                f"{'no ' if wrong else 'yes'} {check}" + (f" ({len(wrong)})" * bool(wrong))
            )
            lines += [f"      {' '.join(one.split())[:600]}" for one in wrong[:12]]
        return "\n".join(lines)


def run(seed: int, minutes: float, log: Path, folder: Path | None = None) -> Outcome:
    """One run; its folder is removed if nothing was wrong, and named in the log otherwise."""
    place = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-", dir=folder))
    place.chmod(0o755)  # the database runs as another user
    journal = Journal(log)
    journal.note("run", f"seed {seed}, {minutes:g} minutes, in {place}")
    fleet = Fleet(place, journal)
    try:
        fleet.start()
        outcome = _conduct(fleet, journal, seed, minutes * 60)
    finally:
        fleet.stop()
    journal.note("run", outcome.told())
    journal.close()
    if outcome.is_sound:
        shutil.rmtree(place)
    return outcome


def _conduct(fleet: Fleet, journal: Journal, seed: int, duration_s: float) -> Outcome:
    customers = Customers(fleet, journal)
    striker = Striker(fleet, journal)
    watcher = Watcher(fleet, journal, striker)
    customers.begin()
    watcher.begin()
    try:
        _play(fleet, journal, seed, duration_s, customers, striker, watcher)
        scratch_bytes = _tidy(fleet)
        customers.close()
        facts = gather(fleet)
        journal.note("run", "every job has ended; the fleet is stopped")
        left = _end(fleet, watcher)
    finally:
        customers.close()
        watcher.close()
    evidence = judge.Evidence(
        facts=facts,
        asked=customers.asked,
        cancelled=frozenset(customers.cancelled),
        struck=list(striker.struck.values()),
        receipts_seen=watcher.receipts,
        worker_exits=watcher.exits,
        scratch_bytes=scratch_bytes,
        processes_left=left,
        expected=_undisturbed(fleet, customers.asked),
        otherwise_wrong=striker.wrong + customers.wrong,
    )
    counts = _counts(evidence, journal, watcher)
    return Outcome(seed, judge.verdict(evidence), counts, journal.path)


def _play(
    fleet: Fleet,
    journal: Journal,
    seed: int,
    duration_s: float,
    customers: Customers,
    striker: Striker,
    watcher: Watcher,
) -> None:
    """Do what the schedule says, when it says so; then let everything come to its end."""
    moments: list[tuple[float, int, Callable[[], None]]] = []
    numbers = itertools.count()

    def at(moment_s: float, do: Callable[[], None]) -> None:
        heapq.heappush(moments, (moment_s, next(numbers), do))

    for fault in faults(seed, duration_s, [plan.name for plan in HOSTS]):
        at(fault.at_s, lambda fault=fault: striker.begin(fault))
        at(fault.until_s, lambda fault=fault: striker.end(fault))
    for submission in submissions(seed, duration_s):
        at(submission.at_s, lambda one=submission: customers.submit(one))
        if submission.cancel_at_s is not None:
            at(submission.cancel_at_s, lambda one=submission: customers.cancel(one))
    began_s = time.monotonic()
    while moments:
        if (wait_s := moments[0][0] - (time.monotonic() - began_s)) > 0:
            time.sleep(min(wait_s, 0.5))
        else:
            heapq.heappop(moments)[2]()
        watcher.restart_the_lost()
    journal.note("run", "no more faults")
    striker.heal()
    customers.finish()
    _drain(fleet, journal, watcher)


def _drain(fleet: Fleet, journal: Journal, watcher: Watcher) -> None:
    def is_over() -> bool:
        watcher.restart_the_lost()
        with suppress(httpx.HTTPError):
            return all(job["state"] in ENDED for job in jobs_of(fleet))
        return False

    try:
        until(is_over, "the end of every job", DRAIN_S)
    except TimeoutError as e:
        journal.note("run", f"{e}")


def _tidy(fleet: Fleet) -> dict[str, int]:
    """What is left in every scratch; workers get some time to clean up."""

    def used() -> dict[str, int]:
        return {host.name: host.scratch.used_bytes() for host in fleet.hosts.values()}

    with suppress(TimeoutError):
        until(lambda: max(used().values()) <= judge.SCRATCH_BYTES, "a clean scratch", TIDY_S)
    return used()


def _end(fleet: Fleet, watcher: Watcher) -> list[str]:
    """Ask every process to stop, as an operator does; what did not, in words."""
    watcher.restart_the_lost()
    programs = [*(host.program for host in fleet.hosts.values()), fleet.server]
    for program in programs:
        program.strike(signal.SIGTERM)
    wrong: list[str] = []
    for program in programs:
        assert program.process is not None
        try:
            code = program.process.wait(120)
        except Exception as e:
            wrong.append(f"{program.name} does not end: {e}")
            continue
        if code != 0:
            wrong.append(f"{program.name} ended with {code}: {program.last_words()}")
    with suppress(TimeoutError):
        until(lambda: not fleet.left_over(), "the end of every process", 60)
    return wrong + [f"process {one.pid} is left: {one.cmdline()}" for one in fleet.left_over()]


def _undisturbed(fleet: Fleet, asked: Mapping[str, Asked]) -> dict[str, dict[str, str]]:
    """By job: what `run` makes of the same sources where nothing goes wrong."""
    groups: dict[tuple[str, int], list[Asked]] = {}
    for one in asked.values():
        groups.setdefault((one.pipeline, one.release), []).append(one)
    expected: dict[str, dict[str, str]] = {}
    for (pipeline, release), jobs in groups.items():
        place = fleet.folder / "undisturbed" / f"{pipeline}-{release}"
        place.mkdir(parents=True)
        copies = [Path(shutil.copy(job.source, place)) for job in jobs]
        env = fleet.clients[release] | {"CHAOS_PACE": "0", "CHAOS_RECORD": str(place / "record")}
        done = run_command(env, place, "run", ref(pipeline), *copies, "--json")
        if done.code != 0:
            raise RuntimeError(f"an undisturbed run ended with {done.code}: {done.err[-2000:]}")
        for job in jobs:
            outputs = place / pipeline / job.source.stem
            expected[job.key] = {
                path.relative_to(outputs).as_posix(): digest(path)
                for path in outputs.rglob("*")
                if path.is_file()
            }
    return expected


def _counts(given: judge.Evidence, journal: Journal, watcher: Watcher) -> dict[str, object]:
    facts: Facts = given.facts
    kinds = {struck.kind for struck in given.struck}
    steps = judge.executions_by_step(given)
    states = sorted({job["state"] for job in facts.jobs.values()})
    return {
        "faults": len(given.struck),
        **{f"  {kind}": journal.counts[kind] for kind in sorted(kinds)},
        "starts while the database or the server was away": journal.counts["starts in vain"],
        "passes of gc": journal.counts["gc"],
        "jobs": {
            state: sum(job["state"] == state for job in facts.jobs.values()) for state in states
        },
        "tasks": sum(map(len, facts.tasks.values())),
        "receipts": len(facts.receipts),
        "tasks executed": sum(tasks for tasks, _ in steps.values()),
        "executions": sum(times for _, times in steps.values()),
        "repeats": dict(judge.repeats(given)),
        "most attempts of a task": max(
            (task["attempts"] for tasks in facts.tasks.values() for task in tasks), default=0
        ),
        "most in a scratch, MiB": {
            name: round(size / 2**20, 1) for name, size in sorted(watcher.peak_bytes.items())
        },
        "left in a scratch, MiB": {
            name: round(size / 2**20, 1) for name, size in sorted(given.scratch_bytes.items())
        },
    }
