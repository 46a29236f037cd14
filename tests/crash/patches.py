"""Unusual machines, put under a run before it starts; its slots are forked and inherit them."""

from __future__ import annotations

import os
import resource
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

from intermission import telemetry
from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.backends.store.local import LocalStore
from intermission.errors import LedgerError
from intermission.ports.store import Stat


def halve_writes() -> None:
    """Every write takes half of what it is given, as a full pipe or a signal may cause."""
    write = os.write

    def write_half(fd: int, data: bytes | memoryview) -> int:
        view = memoryview(data)
        return write(fd, view[: max(1, len(view) // 2)])

    os.write = write_half


def limit_file_size(limit_bytes: int) -> None:
    """No file of this run may grow beyond so many bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))


def refuse_renewals() -> None:
    """A ledger that does everything but renew leases."""

    def renew(*_: Any, **__: Any) -> NoReturn:
        raise LedgerError("nothing is renewed today.")

    SqliteLedger.renew = renew


def announce_receipts(to: str) -> None:
    """A line in a file for every attempt to write a receipt, once it is known how it went."""
    create = LocalStore.create

    def create_and_tell(self: LocalStore, key: str, data: bytes | Path) -> Stat:
        try:
            return create(self, key, data)
        finally:
            if key.startswith("receipts/"):
                with Path(to).open("a") as file:
                    file.write(f"{key}\n")

    LocalStore.create = create_and_tell


def die_once_after_receipt(memory: str) -> None:
    """The first slot to give a receipt its name is killed before it can sync anything more."""
    link = os.link

    def link_and_die(temp: str, path: str) -> None:
        link(temp, path)
        if "/receipts/cut/" in path and not Path(memory).exists():
            Path(memory).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    os.link = link_and_die


def die_at(point: str, nth: int) -> None:
    """The supervisor is killed when it passes a fault point for the nth time."""
    supervisor, passed = os.getpid(), 0

    def die(passing: str) -> None:
        nonlocal passed
        if passing == point and os.getpid() == supervisor:
            passed += 1
            if passed == nth:
                os.kill(supervisor, signal.SIGKILL)

    _listening.enter_context(telemetry.listen(die))


_listening = ExitStack()
"""Never closed: a run listens until it ends."""
