"""What must be true when the simulated jobs are done: one sound receipt a task, the right bytes."""

from __future__ import annotations

from collections.abc import Mapping

from intermission.engine.receipt import receipt_key
from intermission.maintenance.gc import collect
from intermission.model import Job, Output, Receipt, TaskState
from intermission.ports.ledger import every_output
from intermission.testing.ledger.history import check_history
from intermission.testing.simulator.audit import Violation
from intermission.testing.simulator.maintenance_actor import GRACE_S
from intermission.testing.simulator.world import World

Results = Mapping[str, tuple[str, Mapping[str, bytes]]]
"""By the names of a source and a task, its result and its files; outputs under their own names."""


def check_end(world: World, expected: Results | None) -> Results:
    """Hold the end against the promise, and against an undisturbed run's results."""
    check_history(world.ledger("reader", world.place))
    results: dict[str, tuple[str, Mapping[str, bytes]]] = {}
    for job in world.jobs:
        results |= _results(world, job, expected)
    for stat in world.outputs.list(""):
        results[f"outputs/{stat.key}"] = "", {"": world.outputs.read(stat.key)}
    if expected is not None:
        _compare(world, results, expected)
    _sweep(world)
    return results


def _results(world: World, job: Job, expected: Results | None) -> Results:
    ledger = world.ledger("reader", world.place)
    results: dict[str, tuple[str, Mapping[str, bytes]]] = {}
    for spec in job.steps:
        rows = sorted(ledger.tasks(job.key, step=spec.name), key=lambda row: row.index)
        outputs = every_output(ledger, job.key, spec.name)
        for row, one in zip(rows, outputs, strict=True):
            output = one.output
            name = f"{job.source.name}/{row.name}"
            if output is None:
                if not spec.skippable or row.state is not TaskState.FAILED:
                    raise Violation(f"{name} is {row.state} in a job that is done")
                continue
            undisturbed = None if expected is None else expected.get(name)
            files = {} if not spec.durable else _receipted(world, name, spec.name, output)
            if files is None:  # lost after everything that needs it was done: so it stays
                files = {} if undisturbed is None else undisturbed[1]
            results[name] = output.result, files
    return results


def _sweep(world: World) -> None:
    """Remove what nobody needs, and nothing else."""
    named = world.audit.files()
    for _ in range(2):
        world.clock.advance(GRACE_S + 1)
        collect(world.store, world.clock, grace_s=GRACE_S)
    if world.audit.files() != named:
        raise Violation("the garbage collector took a file that a receipt names")


def _receipted(world: World, name: str, step: str, output: Output) -> Mapping[str, bytes] | None:
    """A done task's files, as its one standing receipt names them; None if a fault took one."""
    receipt = world.audit.standing(step, output.task_key)
    if receipt is None and world.audit.is_lost(step, output.task_key):
        return None
    if receipt is None:
        raise Violation(f"{name} is done but has no sound receipt")
    if receipt != Receipt.from_json(world.store.read(receipt_key(step, output.task_key))):
        raise Violation(f"the receipt of {name} changed behind everybody's back")
    named = Output(receipt.task_key, receipt.result, receipt.files)
    if named != output and not world.audit.is_outdated(output):
        raise Violation(f"the ledger has {output} for {name}, its receipt {named}")
    return {file.name: world.store.read(file.key) for file in receipt.files}


def _compare(world: World, results: Results, expected: Results) -> None:
    """`expected` may have more jobs than this simulation."""
    sources = {job.source.name for job in world.jobs}
    wanted = {
        name: what
        for name, what in expected.items()
        if name.removeprefix("outputs/").partition("/")[0].removesuffix(".txt") in sources
    }
    wrong = sorted(n for n in wanted.keys() | results if results.get(n) != wanted.get(n))
    if wrong:
        found = {name: results.get(name) for name in wrong}
        raise Violation(f"expected { ({n: wanted.get(n) for n in wrong}) }, found {found}")
