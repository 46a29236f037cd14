"""What must hold whatever happens, checked at every call to the store and the ledger.

The audit sees each call of each simulated process at the instant it takes effect. It knows
which receipts stand, which of them lost their right to, and what was executed when.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from intermission.engine.graph import EVERY, dependants
from intermission.engine.receipt import receipt_key
from intermission.errors import AlreadyExists, NotFound
from intermission.model import (
    CLAIMABLE,
    HELD,
    Completion,
    FileRef,
    Job,
    Lease,
    Output,
    Receipt,
    StepKind,
    TaskRow,
    TaskState,
)
from intermission.ports.ledger import Ask, Ledger
from intermission.ports.store import Store
from intermission.testing.simulator.blame import Blame

_RECEIPTS = "receipts/"
_LATE = HELD | {TaskState.ABANDONED, TaskState.DONE}
"""Where a completion under the current fence is accepted, or is a repeat."""
_UNHELD = CLAIMABLE | {TaskState.DONE}
"""Where one is that somebody makes who found the receipt."""


class Violation(AssertionError):
    """Something that must never happen has happened."""


class Audit:
    """The book of one simulation."""

    def __init__(self, store: Store, jobs: Sequence[Job], blame: Blame) -> None:
        self._store = store
        self._jobs = {job.key: job for job in jobs}
        self._blame = blame
        self._standing: dict[str, bytes] = {}
        self._stood: set[str] = set()
        """Attempts whose receipts stand, or stood once."""
        self._condemned: set[str] = set()
        self._struck: set[str] = set()
        """Files that a fault took or changed."""
        self._withdrawn: dict[str, bool] = {}
        """Receipts; whether a fault is why: then a late process may do it after the task's end."""
        self._collected: set[str] = set()
        """Files that were deleted; no fault does that through a process."""
        self._behind: dict[str, set[str]] = defaultdict(set)
        for job in jobs:
            for spec in job.steps:
                self._behind[spec.name] |= {step for step, _ in dependants(job, spec.name, EVERY)}
        self._job_of: dict[str, str] = {}
        """By the key of a task."""
        self.ledger_was_replaced = False
        self.violation: Violation | None = None
        """The first one. A process that meets it may take it for its own failure."""
        self.executions: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        """How often something happened that a good set of seeds must have seen."""

    def _violation(self, what: str) -> Violation:
        violation = Violation(what)
        self.violation = self.violation or violation
        return violation

    def store_call(self, name: str, *args: Any, **options: Any) -> Any:
        """A call to the store, held against what may happen to receipts."""
        key = str(args[0]) if args else ""
        before = self._standing.get(key)
        try:
            result = getattr(self._store, name)(*args, **options)
        except AlreadyExists:
            self.counts[f"{name} refused"] += key.startswith(_RECEIPTS)
            raise
        if name not in ("create", "replace", "move", "delete"):
            return result
        if key.startswith(_RECEIPTS):
            self._changed(name, key, before, self._read(key) or None)
        elif name == "delete":
            self._deleted(key)
        else:
            self.touched(key)
        return result

    def _deleted(self, key: str) -> None:
        """Nobody deletes artifacts but the garbage collector."""
        self._collected.add(key)
        if any(file.key == key for one in self._receipts() for file in one.files):
            raise self._violation(f"{key} was collected, and a receipt names it")

    def _changed(self, name: str, key: str, before: bytes | None, now: bytes | None) -> None:
        if before is not None and now is None:
            self._taken_away(name, key, Receipt.from_json(before))
            del self._standing[key]
        elif before is not None and before != now:
            raise self._violation(f"{name} changed the standing receipt {key}")
        elif now is not None:
            self._standing[key] = now
            receipt = Receipt.from_json(now)
            self._stood.add(receipt.attempt)
            if gone := [file.key for file in receipt.files if file.key in self._collected]:
                raise self._violation(f"the receipt {key} names {gone}, which were collected")
            if any(self._hangs_on(receipt, lost) for lost in self._unsound()):
                self._condemned.add(receipt.attempt)

    def _taken_away(self, name: str, key: str, receipt: Receipt) -> None:
        if name != "replace":
            raise self._violation(f"the receipt {key} was lost by a {name}")
        self.counts["receipt quarantined"] += 1
        if receipt.attempt not in self._condemned and self.sound(receipt):
            raise self._violation(
                f"the sound receipt {key} of attempt {receipt.attempt} was put into quarantine"
            )
        self._withdrawn[key] = self._is_struck(receipt.files)

    def struck(self, key: str) -> None:
        """A fault changed a file or removed it."""
        self._struck.add(key)
        self.touched(key)

    def _is_struck(self, files: Iterable[FileRef]) -> bool:
        return any(file.key in self._struck for file in files)

    def touched(self, key: str) -> None:
        """A file was changed or removed: what was made from it has lost its right to stand."""
        receipts = self._receipts()
        for lost in receipts:
            if any(file.key == key for file in lost.files) and not self.sound(lost):
                self._condemned.add(lost.attempt)
                self._condemned |= {one.attempt for one in receipts if self._hangs_on(one, lost)}

    def _receipts(self) -> list[Receipt]:
        return [Receipt.from_json(data) for _, data in sorted(self._standing.items())]

    def _unsound(self) -> list[Receipt]:
        """Only a condemned receipt can be unsound, which saves looking at the others."""
        condemned = [one for one in self._receipts() if one.attempt in self._condemned]
        return [one for one in condemned if not self.sound(one)]

    def _hangs_on(self, one: Receipt, other: Receipt) -> bool:
        """Whether one task was made from another's files, as far as their chunks tell."""
        same_chunk = None in (one.chunk, other.chunk) or one.chunk == other.chunk
        jobs = {self._job_of.get(receipt.task_key) for receipt in (one, other)}
        same_job = None in jobs or len(jobs) == 1
        return same_chunk and same_job and one.step in self._behind[other.step]

    def _read(self, key: str) -> bytes | None:
        try:
            return self._store.read(key)
        except NotFound:
            return None

    def sound(self, receipt: Receipt) -> bool:
        return self.has(receipt.files)

    def has(self, files: Iterable[FileRef]) -> bool:
        """Every file is there, byte for byte."""
        found = ((file, self._read(file.key)) for file in files)
        return all(
            data is not None and hashlib.sha256(data).hexdigest() == file.sha256
            for file, data in found
        )

    def is_lost(self, step: str, task_key: str) -> bool:
        """Whether a fault took a file that a task's receipt names, or named until then."""
        key = receipt_key(step, task_key)
        if key not in self._standing:
            return self._withdrawn.get(key, False) or (
                key in self._withdrawn and self.ledger_was_replaced
            )
        return Receipt.from_json(self._standing[key]).attempt in self._condemned

    def is_outdated(self, output: Output) -> bool:
        """Whether the ledger names files that are lost, and others were made since."""
        is_known = self.ledger_was_replaced or self._is_struck(output.files)
        return is_known and not self.has(output.files)

    def standing(self, step: str, task_key: str) -> Receipt | None:
        """The receipt that makes a task finished, if it has one whose bytes are there."""
        data = self._standing.get(receipt_key(step, task_key))
        receipt = None if data is None else Receipt.from_json(data)
        return receipt if receipt is not None and self.sound(receipt) else None

    def files(self) -> list[str]:
        """Every file that a standing receipt names."""
        return [file.key for one in self._receipts() if self.sound(one) for file in one.files]

    def executing(self, step: str, task_key: str, stood: Receipt | None) -> None:
        """A step is running; `stood` is the receipt its task had before the attempt looked."""
        self.executions[task_key] += 1
        now = self.standing(step, task_key)
        if stood is not None and now == stood and stood.attempt not in self._condemned:
            raise self._violation(f"{step} {task_key} is executed again although it has a receipt")

    def ledger_call(
        self, place: object, ledger: Ledger, name: str, *args: Any, **options: Any
    ) -> Any:
        """A call to a ledger. Every copy of a ledger is at a place of its own."""
        if name == "complete":
            return self._complete(ledger, args[0], lambda: ledger.complete(*args))
        if name == "complete_and_claim":
            return self._complete_and_claim(place, ledger, *args)
        if name == "fail":
            self._complain(self._blame.failed(place, args[0]))
        if name == "renew":
            self._complain(self._blame.renewed(place, args[1]))
        result = getattr(ledger, name)(*args, **options)
        if name == "claim":
            self._note_claimed(place, result)
        if name == "release":
            self.counts[options["reason"]] += result
        if name == "invalidate":
            self.counts["task invalidated"] += len(result)
        return result

    def _complain(self, wrong: str | None) -> None:
        if wrong is not None:
            raise self._violation(wrong)

    def _complete_and_claim(
        self, place: object, ledger: Ledger, done: Sequence[Completion], ask: Ask
    ) -> tuple[list[bool], list[Lease]]:
        leases: list[Lease] = []

        def record() -> list[bool]:
            accepted, claimed = ledger.complete_and_claim(done, ask)
            leases.extend(claimed)
            return accepted

        accepted = self._complete(ledger, done, record)
        self._note_claimed(place, leases)
        self.counts["task handed over"] += len(leases)
        return accepted, leases

    def _note_claimed(self, place: object, leases: Sequence[Lease]) -> None:
        self._job_of |= {lease.key: lease.job_key for lease in leases}
        self._complain(self._blame.claimed(place, leases))

    def _complete(
        self, ledger: Ledger, done: Sequence[Completion], record: Callable[[], list[bool]]
    ) -> list[bool]:
        before = self._rows(ledger)
        answers = record()
        if not any(answers) and self._rows(ledger) != before:
            raise self._violation("a refused completion changed the ledger")
        expected = [_is_current(before.get(one.task_id), one) for one in done]
        # A plan may take away, in the same transaction, what another completion was about.
        alone = len(done) == 1 or not any(self._is_plan(before, one) for one in done)
        if alone and answers != expected:
            raise self._violation(f"completions {done} of {before} were answered {answers}")
        for one, accepted in zip(done, answers, strict=True):
            if accepted and one.receipt is not None and one.receipt.attempt not in self._stood:
                raise self._violation(f"the ledger has taken {one}, whose receipt never stood")
        self.counts["completion refused"] += answers.count(False)
        return answers

    def _is_plan(self, rows: dict[int, TaskRow], completion: Completion) -> bool:
        row = rows.get(completion.task_id)
        steps = [spec for job in self._jobs.values() for spec in job.steps]
        plans = {spec.name for spec in steps if spec.kind is StepKind.PLAN}
        return row is not None and row.step in plans

    def _rows(self, ledger: Ledger) -> dict[int, TaskRow]:
        return {row.id: row for key in self._jobs for row in ledger.tasks(key)}


def _is_current(row: TaskRow | None, completion: Completion) -> bool:
    return (
        row is not None
        and (row.fence, row.key) == (completion.fence, completion.key)
        and row.state in (_UNHELD if completion.by_receipt else _LATE)
    )
