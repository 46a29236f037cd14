"""Removing a job from a SQLite ledger, in bites that nobody has to wait long for.

SQLite has one writer at a time, and a job may have a million tasks: removed at once, they would
keep every other writer waiting until it gives up. So the job goes first, with everything that
could still change, and what is left of it a little at a time. Should this process end in between,
the next one to forget a job goes on with it.
"""

from __future__ import annotations

import time

from intermission.backends.ledger.sqlite.connection import translated
from intermission.backends.ledger.sqlite.dependencies import Dependencies
from intermission.backends.ledger.sqlite.queries import SQL

BITE_ROWS = 2000


class Deletion(Dependencies):
    """`forget`, and what it leaves for later."""

    def delete(self, job_key: str) -> bool:
        id = self._id(job_key)
        if id is None or not self._forget_job(id):
            return False
        self._jobs.pop(id, None)
        with translated(self.path):
            left = self._db.execute("SELECT job_id FROM forgotten").fetchall()
        for (job_id,) in left:
            self._forget_rest(job_id)
        return True

    def _forget_job(self, id: int) -> bool:
        """From here on nobody finds it, and the job of the same key is a new one."""
        with self._transaction():
            if self._db.execute(SQL["forget_job"], {"job": id}).fetchone() is None:
                return False
            self._db.execute(SQL["forget_unfinished"], {"job": id})
            self._db.execute("INSERT INTO forgotten VALUES (?)", (id,))
            return True

    def _forget_rest(self, id: int) -> None:
        for name in ("forget_events", "forget_tasks"):
            while True:
                began_s = time.monotonic()
                with self._transaction():
                    self._db.execute(SQL[name], {"job": id, "most": BITE_ROWS})
                    removed = self._db.changes()
                if removed < BITE_ROWS:
                    break
                time.sleep(time.monotonic() - began_s)  # others take their turn meanwhile
        with self._transaction():
            self._db.execute("DELETE FROM forgotten WHERE job_id = ?", (id,))
