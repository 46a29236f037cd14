"""Where a simulation's ledgers come from: made, opened, and copied as a backup would be."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Protocol

import apsw

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.ports.clock import Clock
from intermission.ports.ledger import Ledger


class Ledgers(Protocol):
    """A kind of ledger. A place is whatever names one ledger of that kind."""

    def create(self) -> Any:
        """The place of a new, empty ledger."""
        ...

    def open(self, place: Any) -> Ledger:
        """One more connection."""
        ...

    def copy(self, place: Any) -> Any:
        """The place of a new ledger with everything this one has now."""
        ...


class SqliteLedgers:
    """A place is a file in a folder. `kind` is what opens it: the ledger, or one with a bug."""

    def __init__(self, clock: Clock, folder: Path, kind: type[SqliteLedger] = SqliteLedger) -> None:
        self._clock = clock
        self._kind = kind
        folder.mkdir(parents=True, exist_ok=True)
        self._names = (folder / f"ledger{no}.sqlite" for no in itertools.count())

    def create(self) -> Path:
        return next(self._names)

    def open(self, place: Path) -> Ledger:
        return self._kind(place, clock=self._clock)

    def copy(self, place: Path) -> Path:
        target = self.create()
        source_db, target_db = apsw.Connection(str(place)), apsw.Connection(str(target))
        with target_db.backup("main", source_db, "main") as backup:
            backup.step()
        target_db.close()
        source_db.close()
        return target
