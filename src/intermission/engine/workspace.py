"""A workspace: where the receipts, artifacts, outputs and ledger of a source's jobs live."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from intermission.model import Source
from intermission.ports.ledger import Ledger
from intermission.ports.store import Store


@dataclass(frozen=True)
class Workspace:
    """How to open each part. The openers travel to slots, so they must pickle."""

    folder: Path
    """On this machine: logs, locks and working files."""
    open_store: Callable[[], Store]
    open_outputs: Callable[[], Store] | None
    open_ledger: Callable[[], Ledger]
    fetch_source: Callable[[Source], Path] | None = None
    """For a source that is not on this machine: a file with its bytes."""
    check_source: Callable[[Source], None] | None = None
    """For such a source: raises `SourceChanged` unless it still is the planned one."""
    sign_source: Callable[[Source, int], str] | None = None
    """For a source in an object store: a URL that reads it for so many seconds."""
    is_remote: bool = False
    """Whether the store is elsewhere: then one machine at a time owns the workspace."""
    shared_scratch: Path | None = None
    """For copies of what lies elsewhere; of the machine, where it has one."""

    @property
    def scratch(self) -> Path:
        return self.shared_scratch or self.folder / "scratch"
