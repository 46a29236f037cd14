"""A ledger that counts what is read of it."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.model import Event, JobRow, TaskOutput, TaskRow


class CountedLedger(SqliteLedger):
    """Counts the rows that every kind of read has answered with."""

    largest: ClassVar[int] = 0
    """The most rows that one read of any such ledger has answered with."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.rows: Counter[str] = Counter()

    def forget(self) -> None:
        self.rows.clear()
        CountedLedger.largest = 0

    def _counted(self, kind: str, found: list[Any]) -> list[Any]:
        self.rows[kind] += len(found)
        CountedLedger.largest = max(CountedLedger.largest, len(found))
        return found

    def jobs(self, *args: Any, **options: Any) -> list[JobRow]:
        return self._counted("jobs", super().jobs(*args, **options))

    def tasks(self, *args: Any, **options: Any) -> list[TaskRow]:
        return self._counted("tasks", super().tasks(*args, **options))

    def outputs(self, *args: Any, **options: Any) -> list[TaskOutput]:
        return self._counted("outputs", super().outputs(*args, **options))

    def events(self, *args: Any, **options: Any) -> list[Event]:
        return self._counted("events", super().events(*args, **options))
