"""A server as a worker's source of work: leases with their tokens, renewals, and ends.

It has the methods of a ledger that a worker calls, so that a worker behind a server is the same
worker. Tokens stay here: the rest of the worker speaks of (task, fence). For any thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeVar
from urllib.parse import urlencode
from uuid import uuid4

from pydantic import BaseModel, ValidationError

from intermission.backends.http import work_schema as wire
from intermission.backends.http.client import ANSWER_TIMEOUT_S, LEDGER, PATIENCE_S, WORK, server
from intermission.errors import ChangeRefused, LedgerError
from intermission.model import (
    Edge,
    EdgeKind,
    Failure,
    FileRef,
    Heartbeat,
    Lease,
    Output,
    Reason,
    Renewal,
    TaskState,
    canonical,
)
from intermission.ports.slot_protocol import Inputs

A = TypeVar("A", bound=BaseModel)

TOKENS_MAX = 65_536
INPUTS_MAX = 4096
"""Of as many leases what came with them is kept until they start; others ask again."""
_UNREAD = wire.InputPage(outputs=[], next=-1)
_RENEW_SHARE = 0.1
"""Of a lease's life: how long one renewal may take, since others wait behind it."""
_LOOK_S = 2.0
"""How long a look for cancelled jobs may take."""
_MESSAGE_MAX = 10_000


class WorkClient:
    """Work from one server, asked for with one key."""

    def __init__(self, url: str, key: str, *, patience_s: float = PATIENCE_S) -> None:
        self.url, self.key = url.rstrip("/"), key
        self._server = server(url, key)
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._tokens: OrderedDict[tuple[int, int], str] = OrderedDict()
        self._inputs: OrderedDict[str, dict[str, wire.TaskInput]] = OrderedDict()
        """By token, what came of a task's inputs with its lease."""
        self._jobs: OrderedDict[str, wire.LeasedTask] = OrderedDict()
        """By the key of the job, the last task of it: what all its tasks share."""

    def claim(
        self,
        worker: str,
        capacity: int,
        *,
        lease_ttl_s: float,
        host: str = "",
        offers: Collection[str] = (),
        runs: Collection[str] | None = None,
        begin: bool = True,
    ) -> list[Lease]:
        asked = wire.Claim(
            process=worker,
            room=min(capacity, wire.LEASES_MAX),
            lease_s=lease_ttl_s,
            host=host or None,
            offers=tuple(offers),
            runs=None if runs is None else tuple(sorted(runs)),
            begin=begin,
        )
        while True:
            claimed = self._call(wire.CLAIM, asked, wire.Claimed)
            if claimed.leases or not claimed.again:
                break
        with self._lock:
            for task in claimed.leases:
                self._tokens[task.task, task.fence] = task.token
                self._inputs[task.token] = task.inputs
                self._jobs[task.job] = task
                self._jobs.move_to_end(task.job)
            sizes = ((self._tokens, TOKENS_MAX), (self._jobs, TOKENS_MAX))
            for known, most in (*sizes, (self._inputs, INPUTS_MAX)):
                while len(known) > most:
                    known.popitem(last=False)
        return [self._lease(task) for task in claimed.leases]

    def shared(self, job_key: str) -> wire.LeasedTask:
        """A task of a job that leases were claimed of: what it says of the job."""
        with self._lock:
            return self._jobs[job_key]

    def renew(self, worker: str, heartbeats: Sequence[Heartbeat], *, lease_ttl_s: float) -> Renewal:
        lost: set[int] = set()
        cancelled: set[int] = set()
        for some in _parts(heartbeats):
            tokens = self._tokens_of((one.task_id, one.fence) for one in some)
            held = [
                wire.HeldLease(lease=token, progress=one.progress, begun=one.begun)
                for one, token in zip(some, tokens, strict=True)
            ]
            asked = wire.Renew(process=worker, leases=held, lease_s=lease_ttl_s)
            within_s = lease_ttl_s * _RENEW_SHARE
            answer = self._call(wire.RENEW, asked, wire.Renewed, within_s=within_s)
            lost.update(answer.lost)
            cancelled.update(answer.cancelled)
        return Renewal(frozenset(lost), frozenset(cancelled))

    def cancelled(self, job_keys: Collection[str]) -> set[str]:
        """Which of these jobs are cancelled."""
        with self._lock:
            tokens = [self._jobs[key].token for key in job_keys if key in self._jobs]
        found: set[str] = set()
        for some in _parts(tokens):
            asked = wire.Cancelled(leases=some)
            answer = self._call(wire.CANCELLED, asked, wire.CancelledJobs, within_s=_LOOK_S)
            found.update(answer.jobs)
        return found

    def complete(self, done: Sequence[tuple[int, int, str, Sequence[FileRef]]]) -> list[wire.End]:
        """End tasks well; each is (task, fence, result, files)."""
        tokens = self._tokens_of((task_id, fence) for task_id, fence, _, _ in done)
        ends: list[wire.End | None] = []
        documents: list[wire.Done] = []
        for token, (_, _, result, files) in zip(tokens, done, strict=True):
            try:
                documents.append(_done(token, result, files))
                ends.append(None)
            except ValidationError as e:  # no server takes it, and the others need not wait
                ends.append(
                    wire.End(accepted=False, problem=f"it can't be sent: {wire.explain(e)}.")
                )
        answers = iter([end for some in _by_size(documents) for end in self._complete(some)])
        return [next(answers) if end is None else end for end in ends]

    def _complete(self, done: Sequence[wire.Done]) -> list[wire.End]:
        """What the server says to ends; one that it never takes is found among the others."""
        try:
            return self._call(wire.COMPLETE, wire.Complete(done=list(done)), wire.Completed).ends
        except ChangeRefused as e:
            if len(done) == 1:
                return [wire.End(accepted=False, problem=str(e))]
            half = len(done) // 2
            return self._complete(done[:half]) + self._complete(done[half:])

    def fail(self, failures: Sequence[Failure]) -> list[TaskState | None]:
        """`delay_s` of 0 leaves the delay to the server."""
        return [self.fail_one(one, one.delay_s or None) for one in failures]

    def fail_one(self, failure: Failure, retry_after_s: float | None) -> TaskState | None:
        (token,) = self._tokens_of([(failure.task_id, failure.fence)])
        failed = wire.FailedAttempt(
            lease=token,
            error=failure.error[:200] or "Error",
            message=_text(failure.message),
            reason=wire.task_reason(failure.code),
            permanent=failure.permanent,
            retry_after_s=retry_after_s,
        )
        (state,) = self._call(wire.FAIL, wire.Fail(failed=[failed]), wire.Failed).states
        return None if state is None else TaskState(state)

    def release(
        self,
        leases: Iterable[tuple[int, int]],
        *,
        reason: str,
        message: str | None = None,
        host: str | None = None,
        until_s: float = 0.0,
    ) -> int:
        released = 0
        for some in _parts(list(leases)):
            asked = wire.Release(
                leases=self._tokens_of(some),
                reason=Reason(reason),
                message=_text(message or ""),
                host=host,
                exclude_s=until_s,
            )
            released += self._call(wire.RELEASE, asked, wire.Released).released
        return released

    def defer(self, task_id: int, fence: int, *, token: str, timeout_s: float) -> bool:
        (lease,) = self._tokens_of([(task_id, fence)])
        asked = wire.Defer(lease=lease, token=token, timeout_s=timeout_s)
        return self._call(wire.DEFER, asked, wire.Deferred).accepted

    def rescue(self, dead: Collection[str] = ()) -> int:
        """The server looks after that itself."""
        return 0

    def renewals(self) -> WorkClient:
        """All jobs of a server renew over this."""
        return self

    def close(self) -> None:
        """The connections are the process's."""

    def _lease(self, task: wire.LeasedTask) -> Lease:
        return Lease(
            task.task,
            task.fence,
            task.attempt,
            task.job,
            task.step,
            task.index,
            task.key,
            None if task.chunk is None else canonical(task.chunk),
            task.alone,
            task.token,
        )

    def inputs(self, lease: Lease, edges: Iterable[Edge]) -> Inputs:
        """What a task takes from upstream; a fan-in is read as it is walked, and once."""
        with self._lock:
            given = self._inputs.pop(lease.token, {})
        found: dict[str, Iterable[Output | None]] = {}
        for edge in edges:
            outputs = self._walk(lease.token, edge.param, given.get(edge.param, _UNREAD))
            found[edge.param] = outputs if edge.kind is EdgeKind.ALL else tuple(outputs)
        return found

    def _walk(self, token: str, param: str, page: wire.InputPage) -> Iterator[Output | None]:
        yield from map(_output, page.outputs)
        while page.next is not None:
            query = urlencode({"input": param, "after": page.next})
            page = self._server.call(
                "reading inputs",
                "GET",
                f"{wire.INPUTS}?{query}",
                lambda response: _read(wire.InputPage, response.read(), self.url),
                faults=LEDGER,
                headers={wire.LEASE_HEADER: token},
                patience_s=self._patience_s,
            )
            yield from map(_output, page.outputs)

    def _tokens_of(self, leases: Iterable[tuple[int, int]]) -> list[str]:
        with self._lock:
            return [self._tokens.get(lease, "unknown") for lease in leases]

    def _call(
        self, path: str, asked: wire.Call, answer: type[A], *, within_s: float | None = None
    ) -> A:
        """The answer. A repeat of a call whose answer was lost is answered as the first was."""
        return self._server.call(
            f"asking to {path.rsplit('/', 1)[-1]}",
            "POST",
            path,
            lambda response: _read(answer, response.read(), self.url),
            faults=WORK,
            body=asked.model_dump_json(exclude_none=True).encode(),
            headers={"Content-Type": "application/json", wire.CALL_HEADER: uuid4().hex},
            patience_s=self._patience_s if within_s is None else within_s,
            timeout_s=ANSWER_TIMEOUT_S if within_s is None else max(1.0, within_s),
        )


def _read(shape: type[A], body: bytes, url: str) -> A:
    try:
        return shape.model_validate_json(body)
    except ValidationError as e:
        raise LedgerError(
            f"expected an answer of an Intermission server from {url}, found something else.",
            remedy="Is that the URL of a server of this version?",
        ) from e


def _done(token: str, result: str, files: Sequence[FileRef]) -> wire.Done:
    named = [
        wire.Artifact(
            name=one.name,
            size_bytes=one.size_bytes,
            sha256=one.sha256,
            direct=one.key == wire.DIRECT,
            content=one.key.removeprefix(wire.INLINE) if one.key.startswith(wire.INLINE) else None,
        )
        for one in files
    ]
    return wire.Done(lease=token, result=result, files=named)


def _text(message: str) -> str:
    """A message as it can be sent: a file's name in it may be bytes that are no text."""
    return message[:_MESSAGE_MAX].encode(errors="replace").decode()


def _output(one: wire.InputOutput) -> Output | None:
    """Its files are known by the URL they are fetched from."""
    if one.result is None:
        return None
    files = tuple(FileRef(file.name, file.url, file.size_bytes, file.sha256) for file in one.files)
    return Output(one.key, one.result, files)


T = TypeVar("T")


def _parts(items: Sequence[T]) -> Iterable[list[T]]:
    for at in range(0, len(items), wire.LEASES_MAX):
        yield list(items[at : at + wire.LEASES_MAX])


def _by_size(done: Sequence[wire.Done]) -> Iterable[list[wire.Done]]:
    """As many ends in one call as its body has room for."""
    some: list[wire.Done] = []
    size_bytes = 0
    for one in done:
        own_bytes = 2 * len(one.result.encode()) + 300 * (len(one.files) + 2)
        own_bytes += sum(len(file.content or "") for file in one.files)
        if some and (len(some) >= wire.LEASES_MAX or size_bytes + own_bytes > wire.BODY_MAX_BYTES):
            yield some
            some, size_bytes = [], 0
        some.append(one)
        size_bytes += own_bytes
    if some:
        yield some
