"""Many processes on one ledger while its server is restarted: every task once, nothing lost."""

from __future__ import annotations

import os
import signal
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from launcher import until

from intermission.backends.ledger.postgres import PostgresLedger
from intermission.model import Completion, JobState, TaskState
from intermission.testing.jobs import chunks, completion, fan_job, submit
from intermission.testing.ledger.history import Trail, check_history
from servers.postgres import PostgresServer

PROCESSES = 8
TASKS_EACH = int(os.environ.get("INTERMISSION_TEST_TASKS_EACH", "250"))
CAPACITY = 7
TTL_S = 600.0
"""Nothing expires here: whatever a lost connection lost would stay lost."""
DEADLINE_S = 240.0
RESTARTS = (signal.SIGKILL, signal.SIGINT, signal.SIGKILL)


def work_until_done(url: str, key: str, name: str, diary: Path) -> None:
    """Claim and complete, and write down each execution, until the job has ended."""
    ledger = PostgresLedger(url)
    with diary.open("ab", buffering=0) as executed:
        while True:
            leases = ledger.claim(name, CAPACITY, lease_ttl_s=TTL_S)
            if not leases and ledger.jobs(key)[0].state is JobState.DONE:
                return
            executed.write(b"".join(b"%d %d\n" % (one.task_id, one.fence) for one in leases))
            accepted = ledger.complete([Completion(o.task_id, o.fence, "1") for o in leases])
            assert all(accepted)


def forked(work: Callable[[], None]) -> int:
    """A child that shares nothing with this process, though its parent's pool was open."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return pid


def ended(children: dict[int, str]) -> dict[str, int]:
    """Wait for all of them; the exit status of each."""
    found: dict[str, int] = {}
    for pid, name in children.items():
        _, status = os.waitpid(pid, 0)
        found[name] = os.waitstatus_to_exitcode(status)
    return found


def test_every_task_once_though_the_server_restarts(
    tmp_path: Path, postgres_server: Callable[..., PostgresServer]
) -> None:
    server = postgres_server()
    ledger = PostgresLedger(server.url)
    made = submit(ledger, fan_job())
    (plan,) = ledger.claim("planner", 1, lease_ttl_s=TTL_S)
    tasks = PROCESSES * TASKS_EACH
    ledger.complete([completion(ledger, made, plan, chunks(tasks))])
    diary = tmp_path / "executed"
    diary.touch()
    names = [f"w{n}" for n in range(PROCESSES)]
    children = {
        forked(lambda name=name: work_until_done(server.url, made.key, name, diary)): name
        for name in names
    }
    try:
        for n, how in enumerate(RESTARTS, start=1):
            share = tasks * n // (len(RESTARTS) + 1)
            what = f"{share} executions"
            until(lambda share=share: lines(diary) >= share, what, DEADLINE_S)
            server.stop(how)
            server.start()
    except BaseException:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        raise
    finally:
        statuses = ended(children)
    assert statuses == dict.fromkeys(names, 0)
    executed = Counter(diary.read_text().split("\n")[:-1])
    assert len(executed) == tasks + 1, "every chunk and the fan-in"
    assert set(executed.values()) == {1}, "no lease was handed out twice"
    assert len({line.split()[0] for line in executed}) == tasks + 1, "no task ran under two fences"
    check_history(ledger)
    trail = Trail()
    trail.follow(ledger)
    assert set(trail.ends.values()) == {1}
    (shown,) = ledger.jobs()
    assert shown.total(TaskState.DONE) == shown.total() == tasks + 2
    assert {row.attempts for row in ledger.tasks(made.key)} == {1}


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_ledger_goes_on_after_a_restart(
    how: signal.Signals, postgres_server: Callable[..., PostgresServer]
) -> None:
    server = postgres_server()
    ledger = PostgresLedger(server.url)
    submit(ledger, fan_job())
    server.stop(how)
    server.start()
    (lease,) = ledger.claim("w1", 5, lease_ttl_s=TTL_S)
    assert lease.fence == 1
    assert ledger.workers() == ["w1"]
