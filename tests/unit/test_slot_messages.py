"""What a slot is sent: every message of a bounded size, however long a fan-in is."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, cast

from engine_bench import Bench

from intermission import Chunk, Pipeline, Source, step
from intermission.backends.executor.messages import INPUTS_AT_ONCE, messages
from intermission.backends.executor.slot import Slot
from intermission.engine.inputs import read_inputs
from intermission.engine.planning import make_job
from intermission.model import Output
from intermission.ports.slot_protocol import (
    Batch,
    Completed,
    InputPage,
    JobContext,
)
from intermission.settings import Settings

COUNT = 2 * INPUTS_AT_ONCE + 3


class Number(Chunk):
    n: int


@step(version=1)
def numbers(count: int = COUNT) -> list[Number]:
    return [Number(n=n) for n in range(count)]


@step(version=1, durable=False)
def doubled(number: Number) -> int:
    return 2 * number.n


@step(version=1)
def total(doubled: list[int], numbers: list[Number]) -> list[int]:
    assert doubled == [2 * one.n for one in numbers]
    return [len(doubled), sum(doubled)]


SUM = Pipeline("sum", [numbers, doubled, total])


class NoLog:
    """In place of a slot's, which takes the standard output of its process."""

    logger = logging.getLogger("intermission.test")

    def begin(self, *attempt: object) -> None: ...

    def end(self) -> None: ...

    def close_last(self) -> None: ...

    def warnings(self) -> tuple[str, ...]:
        return ()


class Messages:
    """A connection on which everything has already arrived."""

    def __init__(self, *arrived: Any) -> None:
        self.arrived = list(arrived)
        self.sent: list[Any] = []

    def recv(self) -> Any:
        if not self.arrived:
            raise EOFError
        return self.arrived.pop(0)

    def send(self, message: Any) -> None:
        self.sent += message


def ready(tmp_path: Path) -> Bench:
    source = Source("file:///a.mp4", "f")
    bench = Bench(tmp_path, SUM, make_job(SUM, source, {}))
    bench.submit()
    bench.take_until("total")
    return bench


def test_a_fan_in_reaches_a_slot_in_pages(tmp_path: Path) -> None:
    bench = ready(tmp_path)
    bench.ledger.rescue(["w"])
    leases = bench.take()
    inputs = read_inputs(bench.ledger, bench.job, leases)
    sent = list(messages("context", leases, inputs))
    pages = [one for one in sent if isinstance(one, InputPage)]
    assert [len(one.outputs) for one in pages] == [INPUTS_AT_ONCE, INPUTS_AT_ONCE, 3]
    batch = sent[-1]
    assert isinstance(batch, Batch)
    assert [len(list(one)) for one in batch.inputs[leases[0].task_id].values()] == [1]
    context = JobContext(
        name="context",
        job=bench.job,
        ref="",
        open_io=lambda: bench.work.io,
        folder=tmp_path,
        worker="w",
        settings=Settings(),
    )
    # A first try of which half arrived is forgotten.
    half = InputPage(leases[0].task_id, "doubled", 0, [Output("another", "7")] * 9)
    connection = Messages(context, half, *sent)
    Slot(cast(Any, connection), cast(Any, NoLog()), open_pipeline=lambda _: SUM).run()
    (said,) = connection.sent
    assert isinstance(said, Completed), said
    assert said.result == f"[{COUNT},{COUNT * (COUNT - 1)}]"
