"""What must be true when a simulated job is done: one sound receipt a task, the right bytes."""

from __future__ import annotations

from collections.abc import Mapping

from intermission.engine.receipt import receipt_key
from intermission.maintenance.gc import collect
from intermission.model import Output, Receipt, TaskState
from intermission.ports.ledger import every_output
from intermission.testing.ledger.history import check_history
from intermission.testing.simulator.audit import Violation
from intermission.testing.simulator.maintenance_actor import GRACE_S
from intermission.testing.simulator.world import World

Results = Mapping[str, tuple[str, Mapping[str, bytes]]]
"""By a task's name, its result and its files; under "" the outputs for people."""


def check_end(world: World, expected: Results | None) -> Results:
    """Hold the end against the promise, and against an undisturbed run's results."""
    ledger = world.ledger("reader", world.place)
    check_history(ledger)
    results: dict[str, tuple[str, Mapping[str, bytes]]] = {}
    for spec in world.job.steps:
        rows = sorted(ledger.tasks(world.job.key, step=spec.name), key=lambda row: row.index)
        outputs = every_output(ledger, world.job.key, spec.name)
        for row, one in zip(rows, outputs, strict=True):
            output = one.output
            if output is None:
                if not spec.skippable or row.state is not TaskState.FAILED:
                    raise Violation(f"{row.name} is {row.state} in a job that is done")
                continue
            undisturbed = None if expected is None else expected.get(row.name)
            files = {} if not spec.durable else _receipted(world, row.name, spec.name, output)
            if files is None:  # lost after everything that needs it was done: so it stays
                files = {} if undisturbed is None else undisturbed[1]
            results[row.name] = output.result, files
    results[""] = "", {stat.key: world.outputs.read(stat.key) for stat in world.outputs.list("")}
    if expected is not None:
        _compare(results, expected)
    _sweep(world)
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
    if named != output:
        raise Violation(f"the ledger has {output} for {name}, its receipt {named}")
    return {file.name: world.store.read(file.key) for file in receipt.files}


def _compare(results: Results, expected: Results) -> None:
    wrong = [name for name in expected.keys() | results if results.get(name) != expected.get(name)]
    if wrong:
        found = {name: results.get(name) for name in sorted(wrong)}
        raise Violation(
            f"expected { ({n: expected.get(n) for n in sorted(wrong)}) }, found {found}"
        )
