"""`HttpLedger`: the ledger of a server, for the commands of an operator.

Each method is one call. A call that changes something carries a number of its own, so that the
server answers a repeat as it answered the first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any
from uuid import uuid4

from intermission.backends.http import rpc_schema
from intermission.backends.http.client import ANSWER_TIMEOUT_S, LEDGER, PATIENCE_S, server
from intermission.errors import LedgerError
from intermission.model import (
    Completion,
    Event,
    Failure,
    Heartbeat,
    Job,
    JobRow,
    JobState,
    Lease,
    Limit,
    Output,
    Renewal,
    Task,
    TaskOutput,
    TaskRow,
    TaskState,
)
from intermission.ports.ledger import PAGE, DeferredTask, Refusal

_RENEW_SHARE = 0.1
"""Of a lease's life: how long one renewal may take, since others wait behind it."""


class HttpLedger:
    """A ledger behind HTTP. `key` is the admin secret."""

    def __init__(self, url: str, key: str, *, patience_s: float = PATIENCE_S) -> None:
        self._opened = url, key, patience_s
        self._patience_s = patience_s
        self._server = server(url, key)

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, self._opened

    def submit(self, job: Job, tasks: Iterable[Task]) -> bool:
        return self._call(rpc_schema.Submit(job=job, tasks=list(tasks)))

    def claim(
        self,
        worker: str,
        capacity: int,
        *,
        lease_ttl_s: float,
        host: str = "",
        offers: Collection[str] = (),
        runs: Collection[str] | None = None,
        jobs: Collection[str] | None = None,
        begin: bool = True,
    ) -> list[Lease]:
        return self._call(
            rpc_schema.Claim(
                worker=worker,
                capacity=min(capacity, rpc_schema.CAPACITY_MAX),
                lease_ttl_s=lease_ttl_s,
                host=host,
                offers=tuple(offers),
                runs=None if runs is None else tuple(runs),
                jobs=None if jobs is None else tuple(jobs),
                begin=begin,
            )
        )

    def renew(self, worker: str, heartbeats: Sequence[Heartbeat], *, lease_ttl_s: float) -> Renewal:
        return self._call(
            rpc_schema.Renew(
                worker=worker,
                heartbeats=list(heartbeats),
                lease_ttl_s=lease_ttl_s,
            ),
            within_s=lease_ttl_s * _RENEW_SHARE,
        )

    def expand(self, task_id: int, fence: int, key: str, tasks: Sequence[Task]) -> bool:
        return self._call(
            rpc_schema.Expand(task_id=task_id, fence=fence, key=key, tasks=list(tasks))
        )

    def complete(self, done: Sequence[Completion]) -> list[bool]:
        return self._call(rpc_schema.Complete(done=list(done)))

    def fail(self, failures: Sequence[Failure]) -> list[TaskState | None]:
        return self._call(rpc_schema.Fail(failures=list(failures)))

    def release(
        self,
        leases: Iterable[tuple[int, int]],
        *,
        reason: str,
        message: str | None = None,
        host: str | None = None,
        until_s: float = 0.0,
    ) -> int:
        held = [(task_id, fence) for task_id, fence in leases]
        call = rpc_schema.Release(
            leases=held,
            reason=reason,
            message=message,
            host=host,
            until_s=until_s,
        )
        return self._call(call)

    def defer(self, task_id: int, fence: int, *, token: str, timeout_s: float) -> bool:
        call = rpc_schema.Defer(task_id=task_id, fence=fence, token=token, timeout_s=timeout_s)
        return self._call(call)

    def rescue(self, dead: Collection[str] = ()) -> int:
        return self._call(rpc_schema.Rescue(dead=tuple(dead)))

    def retry(self, job_key: str, task_ids: Collection[int] | None = None) -> int:
        ids = None if task_ids is None else tuple(task_ids)
        return self._call(rpc_schema.Retry(job_key=job_key, task_ids=ids))

    def cancel(self, job_key: str, *, reason: str) -> bool:
        return self._call(rpc_schema.Cancel(job_key=job_key, reason=reason))

    def invalidate(self, task_ids: Collection[int], *, reason: str) -> list[TaskRow]:
        return self._call(rpc_schema.Invalidate(task_ids=tuple(task_ids), reason=reason))

    def delete(self, job_key: str) -> bool:
        return self._call(rpc_schema.Delete(job_key=job_key))

    def mark(self, job_key: str, state: JobState, *, reason: str | None = None) -> bool:
        return self._call(rpc_schema.Mark(job_key=job_key, state=state, reason=reason))

    def limit(self, limit: Limit) -> None:
        self._call(rpc_schema.Limit(limit=limit))

    def limits(self) -> list[Limit]:
        return self._call(rpc_schema.Limits())

    def jobs(
        self,
        key_prefix: str = "",
        *,
        states: Collection[JobState] = (),
        pipeline: str | None = None,
        source: str | None = None,
        before: int | None = None,
        limit: int | None = None,
    ) -> list[JobRow]:
        return self._call(
            rpc_schema.Jobs(
                key_prefix=key_prefix,
                states=tuple(states),
                pipeline=pipeline,
                source=source,
                before=before,
                limit=limit,
            )
        )

    def tasks(
        self,
        job_key: str,
        *,
        states: Collection[TaskState] = (),
        step: str | None = None,
        after: int = 0,
        limit: int = PAGE,
    ) -> list[TaskRow]:
        asked = {"job_key": job_key, "states": tuple(states), "step": step}
        return self._call(rpc_schema.Tasks(**asked, after=after, limit=limit))

    def receipts(
        self, job_key: str, *, after: int = 0, limit: int = PAGE
    ) -> list[tuple[TaskRow, Output]]:
        return self._call(rpc_schema.Receipts(job_key=job_key, after=after, limit=limit))

    def outputs(
        self, job_key: str, step: str, *, after: int = -1, limit: int = PAGE
    ) -> list[TaskOutput]:
        call = rpc_schema.Outputs(job_key=job_key, step=step, after=after, limit=limit)
        return self._call(call)

    def deferred(self, token: str) -> DeferredTask | None:
        return self._call(rpc_schema.Deferred(token=token))

    def events(self, after: int = 0, *, job: str | None = None, limit: int = 1000) -> list[Event]:
        return self._call(rpc_schema.Events(after=after, job=job, limit=limit))

    def workers(self) -> list[str]:
        return self._call(rpc_schema.Workers())

    def refusals(self) -> list[Refusal]:
        return self._call(rpc_schema.Refusals())

    def close(self) -> None:
        """Nothing is held that is not shared; connections close with the last that uses them."""

    def _call(self, call: rpc_schema.Call, *, within_s: float | None = None) -> Any:
        method = rpc_schema.method_of(call)
        headers = {"Content-Type": "application/json"}
        if method.writes:
            headers[rpc_schema.CALL_HEADER] = uuid4().hex
        try:
            # Pydantic would rather have a generator than a list where a plan's tasks are.
            asked = call.model_dump_json(warnings=False).encode()
        except ValueError as e:  # half of a surrogate pair, as in a file name that is not UTF-8
            raise LedgerError(
                f"the ledger's {method.name} failed: it holds text that is not UTF-8.",
                remedy="Rename the file whose name it is, and run the same command again.",
            ) from e
        body = self._server.call(
            f"the ledger's {method.name}",
            "POST",
            f"{rpc_schema.API}/ledger/{method.name}",
            lambda response: response.read(),
            faults=LEDGER,
            body=asked,
            headers=headers,
            patience_s=min(self._patience_s, within_s or self._patience_s),
            timeout_s=min(ANSWER_TIMEOUT_S, within_s or ANSWER_TIMEOUT_S),
        )
        try:
            return rpc_schema.read_answer(method, body)
        except ValueError as e:
            raise LedgerError(
                f"{self._server.url} answered {method.name} with something else: "
                f"{rpc_schema.explain(e)}.",
                remedy="Is that the URL of an Intermission server of this version?",
            ) from e


def _reopened(url: str, key: str, patience_s: float) -> HttpLedger:
    return HttpLedger(url, key, patience_s=patience_s)
