"""The jobs of one command, in order: each in a workspace with a ledger of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress

from intermission.backends.work_source.open_job import OpenJob
from intermission.backends.work_source.worker_locks import alive, bury, dead
from intermission.errors import EnvironmentFault, IntermissionError
from intermission.model import JobState, Lease
from intermission.ports.clock import Clock
from intermission.ports.ledger import Ask
from intermission.ports.slot_protocol import Completed, HostFault
from intermission.ports.work_source import Claimed, ClaimedJob
from intermission.settings import Settings

POLL_S = 0.25
OPEN_MAX = 32
"""Jobs open at a time; each has two connections to its ledger and a lock."""
_NO_MORE = object()


class OwnJobs:
    """A work source that ends. Jobs are opened when the slots have too little to do.

    None in place of a job means that there is none to open at the moment.
    """

    is_shared = False
    wakes = ()

    def __init__(
        self,
        jobs: Iterator[OpenJob | None],
        worker: str,
        settings: Settings,
        clock: Clock,
        on_end: Callable[[OpenJob], None] = lambda _: None,
    ) -> None:
        self._jobs = jobs
        self._worker = worker
        self._settings = settings
        self._clock = clock
        self._on_end = on_end
        self._open: dict[str, OpenJob] = {}
        self._more = True
        """Whether jobs may be left that were not opened."""
        self._open_at_s = 0.0
        self._rescued_s = 0.0

    @property
    def has_more(self) -> bool:
        return bool(self._open) or self._more

    @property
    def ask_at_s(self) -> float:
        times_s = [one.idle_until_s for one in self._open.values()]
        if self._more and len(self._open) < OPEN_MAX:
            times_s.append(self._open_at_s)
        return min(times_s, default=0.0)

    def ask_soon(self) -> None:
        """Each job knows by itself when one of its tasks ended."""

    def claim(self, room: int, busy: Collection[str], *, begin: bool = True) -> list[Claimed]:
        now_s = self._clock.monotonic_s()
        if now_s - self._rescued_s > self._settings.renew_every_s:
            self._rescued_s = now_s
            for opened in self._open.values():
                _rescue(opened)
        claimed: list[Claimed] = []
        for opened in list(self._open.values()):
            if room > len(claimed) and now_s >= opened.idle_until_s:
                claimed += self._claim(opened, room - len(claimed), busy, begin)
        if room > len(claimed) and self._may_open(now_s):
            opened = next(self._jobs, _NO_MORE)
            self._more = opened is not _NO_MORE
            if isinstance(opened, OpenJob):
                claimed += self._claim(self._opened(opened), room - len(claimed), busy, begin)
            else:
                self._open_at_s = now_s + POLL_S
        return claimed

    def _may_open(self, now_s: float) -> bool:
        return self._more and len(self._open) < OPEN_MAX and now_s >= self._open_at_s

    def _opened(self, opened: OpenJob) -> OpenJob:
        opened.resources.enter_context(alive(opened.workspace, self._worker))
        self._open[opened.name] = opened
        _rescue(opened)
        return opened

    def _claim(
        self, opened: OpenJob, room: int, busy: Collection[str], begin: bool
    ) -> list[Claimed]:
        leases = opened.ledger.claim(**self._ask(opened, room, begin)._asdict())
        if not leases and opened.name not in busy and opened.has_ended():
            self._end(opened)
        elif len(leases) < room:
            opened.idle_until_s = self._clock.monotonic_s() + POLL_S
        return [Claimed(lease, opened) for lease in leases]

    def _ask(self, opened: OpenJob, room: int, begin: bool) -> Ask:
        return Ask(
            self._worker,
            room,
            self._settings.lease_ttl_s,
            offers=self._settings.can,
            jobs=[opened.job.key],
            begin=begin,
        )

    def complete(
        self, job: ClaimedJob, done: Sequence[tuple[Lease, Completed]], room: int
    ) -> list[Claimed]:
        opened = self._open.get(job.name)
        ask = None if opened is None or room <= 0 else self._ask(opened, room, begin=True)
        return [Claimed(lease, job) for lease in job.complete(done, ask)]

    def _end(self, opened: OpenJob) -> None:
        self._on_end(opened)
        del self._open[opened.name]
        opened.resources.close()

    def refuse(self, job: ClaimedJob, leases: Sequence[Lease], fault: HostFault) -> None:
        """There is no other host: the command ends, with progress saved."""
        job.release(leases, reason=fault.reason, message=fault.message)
        error = EnvironmentFault(fault.message, remedy=fault.remedy)
        error.exit_code = fault.exit_code
        raise error

    def finished(self, job: ClaimedJob, step: str) -> None:
        """The job asks again at once, by itself."""

    def leave(self, reason: str | None) -> None:
        """Say why the jobs are unfinished."""
        for opened in list(self._open.values()):
            with suppress(IntermissionError):
                opened.ledger.mark(opened.job.key, JobState.DRAINING, reason=reason)
            self._end(opened)

    def close(self) -> None:
        for opened in self._open.values():
            opened.resources.close()


def _rescue(opened: OpenJob) -> None:
    gone = dead(opened.workspace)
    opened.ledger.rescue(gone)
    bury(opened.workspace, gone)
