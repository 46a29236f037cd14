"""Looking at a machine: can Intermission keep its promises in this place?

Every check tries the thing itself, in a folder of its own that is removed afterwards.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import apsw

from intermission.backends.executor.reaper import Reaper
from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.backends.ledger.sqlite.connection import (
    NETWORK_FILE_SYSTEMS,
    OLDEST_SQLITE,
    file_system_of,
)
from intermission.backends.store.local import LocalStore
from intermission.errors import EnvironmentFault, IntermissionError, fault_from_os

OLDEST_PYTHON = (3, 11)
FREE_MIN_BYTES = 256 * 1024 * 1024
OPEN_FILES_MIN = 256
_SLOT_STARTS_S = 10.0
_PR_GET_PDEATHSIG = 2


@dataclass(frozen=True)
class Finding:
    """What one check found, and what to do where it is not well."""

    name: str
    well: bool
    found: str
    remedy: str = ""


def examine(place: Path) -> Iterator[Finding]:
    """Every check, in the order in which they matter."""
    checks: dict[str, Callable[[], Finding]] = {
        "slots": _slots,  # first: it forks, which wants a process without threads
        "python": _python,
        "sqlite": _sqlite,
        "file system": lambda: _file_system(place),
        "create-only": lambda: _create_only(place),
        "ledger": lambda: _ledger(place),
        "disk": lambda: _disk(place),
        "open files": _open_files,
        "clock": _clock,
        "media": _media,
        "speech": _speech,
        "models": _models,
    }
    for name, check in checks.items():
        try:
            finding = check()
            yield replace(finding, remedy="") if finding.well else finding
        except OSError as e:
            fault = fault_from_os(e, f"checking {name}", EnvironmentFault, where=place)
            yield Finding(name, False, fault.message, fault.remedy)
        except IntermissionError as e:
            yield Finding(name, False, e.message, e.remedy)


def _python() -> Finding:
    well = sys.version_info >= OLDEST_PYTHON
    return Finding("python", well, platform.python_version(), "Python 3.11 or newer is needed.")


def _sqlite() -> Finding:
    version = apsw.sqlite_lib_version()
    well = tuple(map(int, version.split("."))) >= OLDEST_SQLITE
    remedy = "3.51.3 or newer is needed: upgrade the apsw package."
    return Finding("sqlite", well, f"{version} (apsw {apsw.apsw_version()})", remedy)


def _file_system(place: Path) -> Finding:
    kind = file_system_of(place)
    well = kind not in NETWORK_FILE_SYSTEMS
    remedy = "SQLite cannot lock safely on a network file system: use a local disk."
    return Finding("file system", well, f"{kind or 'unknown'} at {place}", remedy)


def _create_only(place: Path) -> Finding:
    with tempfile.TemporaryDirectory(prefix=".intermission-doctor-", dir=place) as folder:
        LocalStore(Path(folder)).self_test()
    return Finding("create-only", True, "a second create is refused")


def _ledger(place: Path) -> Finding:
    with tempfile.TemporaryDirectory(prefix=".intermission-doctor-", dir=place) as folder:
        SqliteLedger(Path(folder) / "ledger.sqlite").close()
    return Finding("ledger", True, "opens with a write-ahead log, fully synced")


def _disk(place: Path) -> Finding:
    usage = shutil.disk_usage(place)
    found = f"{usage.free / 2**30:.1f} GiB free of {usage.total / 2**30:.1f} GiB"
    remedy = f"At least {FREE_MIN_BYTES // 2**20} MiB should be free."
    return Finding("disk", usage.free >= FREE_MIN_BYTES, found, remedy)


def _open_files() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    well = soft == resource.RLIM_INFINITY or soft >= OPEN_FILES_MIN
    return Finding("open files", well, f"at most {soft}", "Raise the limit with `ulimit -n 1024`.")


def _clock() -> Finding:
    well = hasattr(time, "CLOCK_BOOTTIME")
    found = "leases also end while the machine sleeps" if well else "leases stop while it sleeps"
    return Finding("clock", True, found)


def _media() -> Finding:
    try:
        import av
    except ImportError:
        return Finding("media", True, "not installed: pip install 'intermission[media]'")
    from intermission.media.sandbox import UNPROTECTED_REMEDY, landlock_version, missing_controls
    from intermission.settings import current

    version, missing = landlock_version(), missing_controls()
    files = f"decoders see no file (Landlock {version})" if version else "no Landlock here"
    calls = "no seccomp here" if "seccomp" in missing else "seccomp holds"
    well = not missing or current().media_sandbox != "require"
    found = f"PyAV {av.__version__}, {files}, {calls}"
    return Finding("media", well, found, UNPROTECTED_REMEDY)


def _speech() -> Finding:
    from intermission.backends.speech import whisper
    from intermission.settings import current

    try:
        whisper.require_library()
    except EnvironmentFault:
        return Finding("speech", True, "not installed: pip install 'intermission[transcribe]'")
    weights = whisper.WhisperEngine().identify("", "auto")
    settings = current()
    device = whisper.chosen_device(settings)
    precision = whisper.chosen_precision(settings, device)
    threads = f", {whisper.chosen_threads(settings)} threads" if device == "cpu" else ""
    return Finding("speech", True, f"{weights.model} on {device} in {precision}{threads}")


def _models() -> Finding:
    from intermission.operations.models import list_models
    from intermission.settings import current

    here = [model.name for model in list_models(current()) if model.present]
    return Finding("models", True, ", ".join(here) or "none: intermission models download NAME")


def _slots() -> Finding:
    reaper = Reaper(_answer)
    try:
        connection = reaper.spawn(0)
        if not connection.poll(_SLOT_STARTS_S):
            return Finding("slots", False, "a slot did not start", "Look at the process limits.")
        death_signal = connection.recv()
        connection.close()
    except EOFError:
        return Finding("slots", False, "a slot died at its start", "Look at the process limits.")
    finally:
        reaper.close()
    well = death_signal == signal.SIGKILL or sys.platform != "linux"
    found = "start, and die with their parent" if well else "start, but may outlive their parent"
    return Finding("slots", well, found, "prctl is refused here: allow PR_SET_PDEATHSIG.")


def _answer(connection: Connection) -> None:
    """In a slot: say which signal its parent's death will send it."""
    number = ctypes.c_int(0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_GET_PDEATHSIG, ctypes.byref(number), 0, 0, 0)
    connection.send(number.value)
    connection.poll(_SLOT_STARTS_S)
    os._exit(0)
