"""The same hand-written SQL, and one process that does everything."""

from __future__ import annotations

from intermission.engine.backlog import BATCH_MAX
from queues.handwritten import Client, client, prepare, work

WORKERS = 1
SETTINGS = f"{WORKERS} worker, batches of {BATCH_MAX:,}, LISTEN/NOTIFY, one COPY"

__all__ = ["SETTINGS", "WORKERS", "Client", "client", "prepare", "work"]
