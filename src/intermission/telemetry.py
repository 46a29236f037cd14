"""What the program says about itself while it runs: log lines and fault points.

Logging is the standard library's with two formatters, because all it must do is stamp a line
with the job, task and attempt it belongs to; structlog costs more to import than `--help` may
take. Fault points are names the engine passes at the instants where a crash would matter most.
Nothing here changes what a task does, unless a fault point is armed to end the process.
"""

from __future__ import annotations

import json as jsonlib
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

CRASH_VARIABLE = "INTERMISSION_CRASH_AT"
"""`NAME` or `NAME:3`: the process that reaches this point (for the third time) kills itself."""

OWNERSHIP_POINTS = (
    "before-lock-take",  # a workspace's lock may be taken, the request is about to be made
    "after-lock-take",  # the lock is ours, and the ledger is not yet
    "before-lock-renew",  # the lock's next sign of life is about to be given
    "after-lock-renew",  # the lock's next sign of life was given
    "before-lock-free",  # the ledger is uploaded, the lock is about to be freed
    "after-lock-free",  # the lock is free
    "before-ledger-backup",  # the ledger changed, a copy is about to be made
    "after-ledger-backup",  # the copy is made and checked, about to be uploaded
    "after-ledger-upload",  # the copy is in the store, and nothing here says so
)
"""Passed only where a workspace is in an object store and its ledger is a copy."""

POINTS = (
    "after-claim",  # the ledger has given leases, nothing has been done with them
    "before-step",  # inputs are fetched, the step's function is about to be called
    "after-step",  # the function has returned, its result is in memory alone
    "after-artifacts",  # the task's files are in the store, and nothing names them yet
    "before-receipt",  # the receipt is written out in memory, about to be created
    "after-receipt",  # the task is finished, and the ledger does not know it
    "before-complete",  # completions are collected, about to be handed to the ledger
    "after-complete",  # the ledger has recorded completions and what they unblocked
    "before-expand",  # a plan's chunks are known, its tasks are not computed yet
    "after-submit",  # a job is in the ledger, and nobody has claimed a task of it
    "before-publish",  # outputs for people are about to be put in their place
    "after-publish",  # outputs for people are in place
    "before-release",  # a draining worker is about to give its leases back
    "mid-quarantine",  # some of a corrupt task's objects are moved away, others are not
    "before-renew",  # heartbeats are collected, about to be handed to the ledger
    *OWNERSHIP_POINTS,
)

_listeners: tuple[Callable[[str], None], ...] = ()


def reached(name: str) -> None:
    """Pass a fault point. Costs one look at a global unless somebody listens."""
    if _listeners:
        _check(name)
        for listener in _listeners:
            listener(name)


@contextmanager
def listen(callback: Callable[[str], None]) -> Iterator[None]:
    """Call back at every fault point this process passes, in whichever thread passes it."""
    global _listeners
    _listeners = (*_listeners, callback)
    try:
        yield
    finally:
        _listeners = tuple(one for one in _listeners if one is not callback)


def parse_point(text: str) -> tuple[str, int]:
    """The name and count in `NAME` or `NAME:3`."""
    name, colon, count = text.partition(":")
    _check(name)
    if colon and not (count.isdecimal() and int(count) > 0):
        raise ValueError(f"expected a count from 1 after {name!r}:, found {count!r}")
    return name, int(count) if colon else 1


def _check(name: str) -> None:
    if name not in POINTS:
        raise ValueError(f"there is no fault point {name!r}; the points are {', '.join(POINTS)}")


def _killer(name: str, nth: int) -> Callable[[str], None]:
    # Keyed by process, so that a forked child starts counting afresh.
    passed: Counter[int] = Counter()

    def kill(passing: str) -> None:
        if passing != name:
            return
        passed[os.getpid()] += 1
        if passed[os.getpid()] == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    return kill


if os.environ.get(CRASH_VARIABLE):
    _listeners = (_killer(*parse_point(os.environ[CRASH_VARIABLE])),)


_bound: ContextVar[Mapping[str, Any]] = ContextVar("intermission_bound")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@contextmanager
def bind(**fields: Any) -> Iterator[None]:
    """Stamp the lines this thread logs inside the block: `bind(job=..., task=..., attempt=2)`."""
    token = _bound.set({**_bound.get({}), **fields})
    try:
        yield
    finally:
        _bound.reset(token)


def configure_logging(level: str, *, json: bool = False, stream: TextIO | None = None) -> None:
    """Send `intermission` loggers to standard error, or `stream`; a later call replaces this."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_JsonLines() if json else _Text())
    logger = logging.getLogger("intermission")
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    # The embedding program's root logger would print every line a second time.
    logger.propagate = False


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What was bound, and what the call passed as `extra`."""
    extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    return {**_bound.get({}), **extra}


class _Text(logging.Formatter):
    """`2026-01-31T12:00:00.123Z warning lease lost job=6f2a task=transcribe[7] attempt=2`"""

    def formatMessage(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        return f"{_when(record)} {record.levelname.lower()} {record.getMessage()}{fields}"


class _JsonLines(logging.Formatter):
    """One JSON object a line; the names below cannot be overridden by a field."""

    def format(self, record: logging.LogRecord) -> str:
        fixed = {
            "at": _when(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fixed["traceback"] = self.formatException(record.exc_info)
        return jsonlib.dumps({**fixed, **_fields(record), **fixed}, default=str, ensure_ascii=False)


def _when(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
