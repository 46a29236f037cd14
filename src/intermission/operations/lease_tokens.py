"""Lease tokens: proof that a server gave a lease to a worker, readable by the server alone.

A token names the task, its fence and the attempt, and is signed with a secret that belongs to the
worker it was given to. So it is good on every server of a fleet and after any restart, and in the
hands of another worker it opens nothing. Whether the fence is still current, the ledger knows.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class LeaseToken:
    """What a lease token says."""

    task_id: int
    fence: int
    attempt: str
    """The name of the attempt, under which its artifacts lie."""
    tries: int
    job_key: str
    step: str
    index: int
    key: str
    process: str

    def sign(self, secret: bytes) -> str:
        payload = json.dumps(astuple(self), separators=(",", ":")).encode()
        text = base64.urlsafe_b64encode(payload).rstrip(b"=")
        return f"{text.decode()}.{_signature(secret, text)}"


def read_token(text: str, secret: bytes) -> LeaseToken | None:
    """What a token says; None for one that this secret did not sign."""
    payload, dot, signature = text.partition(".")
    signed = payload.encode(errors="replace")
    given = signature.encode(errors="replace")
    if not dot or not hmac.compare_digest(given, _signature(secret, signed).encode()):
        return None
    data = base64.urlsafe_b64decode(signed + b"=" * (-len(signed) % 4))
    return LeaseToken(*json.loads(data))


def _signature(secret: bytes, payload: bytes) -> str:
    return hmac.new(secret, b"lease:" + payload, hashlib.sha256).hexdigest()[:40]
