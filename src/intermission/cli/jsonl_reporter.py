"""The progress of a run as JSON events, one a line on standard output."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from intermission.cli.jsonout import emit
from intermission.composition.event_log import events_after, last_event, timestamp
from intermission.operations.documents import EventDocument, SourceRunDocument, steps_of
from intermission.operations.rendition_progress import GroupNews

if TYPE_CHECKING:
    from intermission.model import Event
    from intermission.operations import SourceRun

EVERY_S = 0.1


class JsonLinesReporter:
    """Passes on what the ledgers of the open sources record, in their order."""

    def __init__(self) -> None:
        self._seen: dict[int, int] = {}
        self._news: dict[int, GroupNews] = {}
        self._open: list[SourceRun] = []
        self._last_s = 0.0

    def found(self, sources: int) -> None:
        """Every source has events of its own, and the summary has them all."""

    def opened(self, run: SourceRun) -> None:
        assert run.job is not None
        assert run.row is not None
        assert run.ledger is not None
        self._open.append(run)
        self._seen[id(run)] = last_event(run.ledger)
        self._news[id(run)] = GroupNews(run.job)
        emit(
            {
                "event": "opened",
                "at": _now(),
                "job": run.job.key,
                "source": str(run.path),
                "pipeline": run.job.pipeline,
                "total": run.row.total(),
                "reused": run.reused,
                "steps": steps_of(run.row),
            }
        )

    def tick(self) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s >= EVERY_S:
            self._last_s = now_s
            for run in self._open:
                self._pass_on(run)

    def draining(self, reason: str) -> None:
        emit({"event": "draining", "at": _now(), "reason": reason})

    def closed(self, run: SourceRun) -> None:
        if run in self._open:
            self._pass_on(run)
            self._open.remove(run)
        emit({"event": "closed", "at": _now()}, SourceRunDocument.of(run))

    def finish(self) -> None:
        """The summary is printed by the command itself."""

    def _pass_on(self, run: SourceRun) -> None:
        if run.ledger is None or run.job is None:
            return
        told: list[Event] = []
        for event in events_after(run.ledger, self._seen[id(run)], run.job.key):
            self._seen[id(run)] = event.seq
            emit(EventDocument.of(event))
            told.append(event)
        for group in self._news[id(run)].after(run.ledger, told):
            emit({"event": "group", "at": _now(), "job": run.job.key}, group)


def _now() -> str | None:
    return timestamp(time.time_ns() // 1_000_000)
