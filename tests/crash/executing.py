"""Many processes that execute what one ledger has, and an account of what each of them executed."""

from __future__ import annotations

import os
import signal
import traceback
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from launcher import until

from intermission.backends.ledger.postgres import PostgresLedger
from intermission.errors import LedgerError
from intermission.model import Completion, Job, JobState, TaskState
from intermission.ports.ledger import every_task
from intermission.testing.jobs import chunks, completion, fan_job, submit
from intermission.testing.ledger.history import Trail, check_history

CAPACITY = 7
TTL_S = 600.0
"""Nothing expires here: whatever a lost connection lost would stay lost."""
DEADLINE_S = 240.0


def _opened(url: str) -> PostgresLedger | None:
    try:
        return PostgresLedger(url)
    except LedgerError:
        return None


class Executions:
    """A job of so many chunks in a ledger, and the processes that work on it."""

    def __init__(self, url: str, tasks: int, diary: Path) -> None:
        self._url = url
        self.tasks = tasks
        self._diary = diary
        diary.touch()
        self.ledger = PostgresLedger(url)
        self.job: Job = submit(self.ledger, fan_job())
        (plan,) = self.ledger.claim("planner", 1, lease_ttl_s=TTL_S)
        self.ledger.complete([completion(self.ledger, self.job, plan, chunks(tasks))])

    @contextmanager
    def by(self, processes: int) -> Generator[None, None, None]:
        """Processes that share nothing with this one, though its pool was open; all must end."""
        names = [f"w{n}" for n in range(processes)]
        children = {self._fork(name): name for name in names}
        try:
            yield
        except BaseException:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            raise
        finally:
            ends = {name: os.waitpid(pid, 0)[1] for pid, name in children.items()}
        assert ends == dict.fromkeys(names, 0)

    def _fork(self, name: str) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                self._work_until_done(name)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        return pid

    def _work_until_done(self, name: str) -> None:
        """Claim and complete, and write down each execution, until the job has ended."""
        # The first connection may come just while the server is restarted, and is not repeated.
        ledger = until(partial(_opened, self._url), "the ledger opens", DEADLINE_S)
        assert ledger is not None
        with self._diary.open("ab", buffering=0) as executed:
            while True:
                leases = ledger.claim(name, CAPACITY, lease_ttl_s=TTL_S)
                if not leases and ledger.jobs(self.job.key)[0].state is JobState.DONE:
                    return
                executed.write(b"".join(b"%d %d\n" % (one.task_id, one.fence) for one in leases))
                accepted = ledger.complete([Completion(o.task_id, o.fence, "1") for o in leases])
                assert all(accepted)

    def wait_for(self, share: float) -> None:
        count = int(self.tasks * share)
        until(
            lambda: self._diary.read_bytes().count(b"\n") >= count,
            f"{count} executions",
            DEADLINE_S,
        )

    def check_each_once(self) -> None:
        """Every chunk and the fan-in: handed out once, executed once, ended once."""
        executed = Counter(self._diary.read_text().split("\n")[:-1])
        assert len(executed) == self.tasks + 1, "every chunk and the fan-in"
        assert set(executed.values()) == {1}, "no lease was handed out twice"
        ids = {line.split()[0] for line in executed}
        assert len(ids) == self.tasks + 1, "no task ran under two fences"
        check_history(self.ledger)
        trail = Trail()
        trail.follow(self.ledger)
        assert set(trail.ends.values()) == {1}
        (shown,) = self.ledger.jobs()
        assert shown.total(TaskState.DONE) == shown.total() == self.tasks + 2
        assert {row.attempts for row in every_task(self.ledger, self.job.key)} == {0}
