"""`Idempotency-Key`: a request that is sent again gets the answer of the first.

A job is found again by its content anyway. The key holds where the content does not: when the
source has changed since, the repeat still means the job that the first request made. The note of
a key is written create-only into the server's store, so that it outlives the server and holds
for every server over the same store.
"""

from __future__ import annotations

import hashlib
import json

from intermission.errors import AlreadyExists, NotFound, UsageError
from intermission.ports.store import Store


class Repeats:
    """The notes in one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def job_of(self, key: str, request: str) -> str | None:
        """The job that the request with this key made; None if there was none."""
        try:
            note = json.loads(self._store.read(_note(key)))
        except NotFound:
            return None
        if note["request"] != _digest(request):
            raise UsageError(
                "this Idempotency-Key came with another body before.",
                remedy="Make a new key for every new request.",
            )
        return note["job"]

    def remember(self, key: str, request: str, job: str, *, forgotten: str | None) -> str:
        """Note which job a request made. Of two at the same time the first counts: its job.

        `forgotten` is the job of an earlier note that is no more; then this one takes its place.
        """
        note = json.dumps({"request": _digest(request), "job": job}).encode()
        if forgotten is not None:
            self._store.replace(_note(key), note)
            return job
        try:
            self._store.create(_note(key), note)
        except AlreadyExists:
            return self.job_of(key, request) or job
        return job


def _note(key: str) -> str:
    return f"requests/{_digest(key)}.json"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
