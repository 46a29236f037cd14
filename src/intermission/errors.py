"""Every error Intermission raises on purpose, and what each means for the user.

An error's message says what was expected, what was found and what to do; `remedy` is that
last part. `retryable` decides whether a task gets another attempt. `exit_code` is what the
command line returns when the error ends a command. Foreign exceptions are translated once,
in the backend that met them.

    IntermissionError                 1
    ├── UsageError                    2   the command or the pipeline is wrong
    │   ├── PipelineError             2   a pipeline does not load, or its graph is wrong
    │   │   └── NoPipeline            2   this process does not have it, or has another version
    │   └── ParameterError            2   a parameter has the wrong name or type
    ├── EnvironmentFault              4   the machine, the disk or the ledger is wrong
    │   ├── LedgerError               4
    │   │   ├── LedgerCorrupt         4   the file is not a ledger, or is damaged
    │   │   ├── LedgerTooNew          4   a newer program wrote it
    │   │   ├── LedgerRefused         4   a server turns us away, for our key or our version
    │   │   ├── ChangeRefused         4   a server never takes this change: the task fails
    │   │   └── StalePlans            4   another plan finished first; compute the tasks again
    │   ├── StoreError                4   reading or writing objects failed
    │   │   ├── StoreRefused          4   credentials are missing or denied, or there is no bucket
    │   │   └── StoreUnavailable     75   it gave no usable answer for long; progress is saved
    │   ├── QueueError                4   a queue gives no messages; progress goes on without
    │   └── LockLost                 75   another machine took the workspace over
    ├── WorkspaceBusy                75   another machine is at work in the workspace
    ├── SourceError                   1   permanent: a source is missing or unreadable
    │   ├── EmptyPlace                1   a folder or prefix has no file that is wanted
    │   └── SourceChanged             1   its content changed while it was being worked on
    ├── TaskError                     1   retryable: one attempt went wrong
    │   ├── Permanent                 1   no further attempt can help
    │   │   └── MediaError            1   a media file is broken, or no media at all
    │   ├── SlotDied                  1   the process running the task was killed
    │   └── TimedOut                  1   the task ran past its time-out
    ├── CorruptArtifact               1   an input's bytes are not what its receipt says
    ├── InputUnfinished               1   an input was lost after the claim; the task waits again
    ├── AlreadyExists                 1   a create-only write lost; the first one stands
    ├── NotFound                      1   no object under that key
    └── Interrupted                  75   stopped on request; progress is saved
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar


class IntermissionError(Exception):
    """Something Intermission did could not be done."""

    exit_code = 1
    retryable = False

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class UsageError(IntermissionError):
    """The command was used in a way it does not support."""

    exit_code = 2


class PipelineError(UsageError):
    """A pipeline could not be loaded, or its steps do not fit together."""


class NoPipeline(PipelineError):
    """This process does not have the pipeline that a job asks for, or has another version of it."""


class ParameterError(UsageError):
    """A parameter is unknown or its value has the wrong type."""


class EnvironmentFault(IntermissionError):
    """The machine cannot do what is needed: disk, permissions, ledger or store."""

    exit_code = 4
    retryable = True


class LedgerError(EnvironmentFault):
    """The ledger could not be read or written."""


class LedgerCorrupt(LedgerError):
    """The ledger file is not a ledger, or is damaged."""

    retryable = False


class LedgerTooNew(LedgerError):
    """The ledger was written by a newer version of Intermission."""

    retryable = False


class LedgerRefused(LedgerError):
    """A server turns this program away: its key, or its version, is not one it takes."""

    retryable = False


class ChangeRefused(LedgerError):
    """The other side never takes this change, however often it is sent: it is too large, say."""

    retryable = False


class StalePlans(LedgerError):
    """Tasks were computed from plans that are no longer all the plans that are done."""


class StoreError(EnvironmentFault):
    """An object could not be read, written, listed or deleted."""


class StoreRefused(StoreError):
    """The store turns this user away: credentials missing or denied, or no such bucket."""

    retryable = False


class StoreUnavailable(StoreError):
    """The store gave no usable answer, however often it was asked; progress is saved."""

    exit_code = 75


class QueueError(EnvironmentFault):
    """A queue of messages is missing, denied or not answering."""


class LockLost(EnvironmentFault):
    """This process no longer owns the workspace; whoever does continues from its receipts."""

    exit_code = 75


class WorkspaceBusy(IntermissionError):
    """Somebody else owns the workspace, and is alive as far as its store can tell."""

    exit_code = 75

    def __init__(self, message: str, *, owner: str, since_ms: int, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.owner = owner
        self.since_ms = since_ms


class SourceError(IntermissionError):
    """A source is missing or cannot be read."""


class EmptyPlace(SourceError):
    """A folder, pattern or prefix can be looked at, and nothing in it is wanted."""


class SourceChanged(SourceError):
    """A source's content is no longer what the job was planned for."""


class TaskError(IntermissionError):
    """One attempt at a task failed; another attempt may succeed.

    `retry_after_s` is how long somebody asked us to wait before the next; None leaves it to the
    step's own delays.
    """

    retryable = True

    def __init__(
        self, message: str, *, remedy: str = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after_s = retry_after_s


class Permanent(TaskError):
    """This task can never succeed: raise it from a step to skip the remaining attempts."""

    retryable = False


class MediaError(Permanent):
    """A file cannot be used as media, for what is in it."""


class SlotDied(TaskError):
    """The process that ran the task was killed or crashed."""


class TimedOut(TaskError):
    """The task ran longer than its step's time-out."""


class CorruptArtifact(IntermissionError):
    """An artifact is missing or its bytes are not the ones in its receipt."""

    def __init__(self, message: str, *, task_key: str, key: str, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.task_key = task_key
        self.key = key


class InputUnfinished(IntermissionError):
    """A task's input is not done any more: the task was taken back, and waits for it again."""


class AlreadyExists(IntermissionError):
    """A create-only write found an object under its key already."""


class NotFound(IntermissionError):
    """There is no object under this key."""


class Interrupted(IntermissionError):
    """The command was asked to stop; progress is saved."""

    exit_code = 75


_AGAIN = "run the same command again; progress is saved."

# What an errno means to a person, and what to do about it.
_OS_FAULTS: dict[int | None, tuple[str, str]] = {
    errno.ENOSPC: ("the disk that holds {where} is full", f"Free some space and {_AGAIN}"),
    errno.EDQUOT: (
        "the disk quota for {where} is used up",
        f"Free some space or get a larger quota, and {_AGAIN}",
    ),
    errno.EROFS: (
        "{where} is on a read-only file system",
        f"Mount it writable, or choose another place, and {_AGAIN}",
    ),
    errno.EACCES: (
        "this user may not do that in {where}",
        f"Give yourself access to it (`ls -ld` shows who has it) and {_AGAIN}",
    ),
    errno.EMFILE: (
        "this process has too many files open",
        f"Raise the limit (`ulimit -n`) or use fewer slots, and {_AGAIN}",
    ),
    errno.ENFILE: (
        "this machine has too many files open",
        f"End other programs or raise the limit (`sysctl fs.file-max`), and {_AGAIN}",
    ),
    errno.EIO: (
        "the disk that holds {where} answered with an input/output error",
        f"Check that disk and its cables (`dmesg` says more), then {_AGAIN}",
    ),
}
_OS_FAULTS[errno.EPERM] = _OS_FAULTS[errno.EACCES]

Fault = TypeVar("Fault", bound=EnvironmentFault)


def fault_from_os(e: OSError, doing: str, kind: type[Fault], *, where: object = "") -> Fault:
    """The error of class `kind` that says what an OSError means; raise it `from e`.

    `doing` completes the sentence "... failed", as in "writing a receipt". `where` is the
    place people know, such as a workspace; the path in the OSError stands in for it.
    """
    place = where or e.filename or "it"
    if e.errno in _OS_FAULTS:
        reason, remedy = _OS_FAULTS[e.errno]
        return kind(f"{doing} failed: {reason.format(where=place)}.", remedy=remedy)
    reason = (e.strerror or str(e) or type(e).__name__).lower()
    at = f" ({e.filename})" if e.filename else ""
    return kind(f"{doing} failed: {reason}{at}.", remedy=f"Put that right and {_AGAIN}")


@contextmanager
def os_faults(doing: str, kind: type[EnvironmentFault], *, where: object = "") -> Iterator[None]:
    """Raise what an OSError inside means, in the words of `fault_from_os`."""
    try:
        yield
    except OSError as e:
        raise fault_from_os(e, doing, kind, where=where) from e
