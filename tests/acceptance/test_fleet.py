"""Workers on a shared ledger, as a person starts them: jobs go in, outputs come out, once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from command_line import PIPELINES, TIMEOUT_S, Cli, in_sentence, until

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.ports.ledger import every_task
from servers.postgres import Databases, PostgresServer, as_url


@pytest.fixture
def fleet(cli: Cli) -> Cli:
    cli.env |= {
        "INTERMISSION_LEDGER": str(cli.folder / "shared" / "ledger.sqlite"),
        "INTERMISSION_LEASE_TTL_S": "4",
        "INTERMISSION_RENEW_EVERY_S": "1",
    }
    return cli


def submit(cli: Cli, pipeline: str, *args: object) -> list[str]:
    return cli("submit", f"{PIPELINES}:{pipeline}", *args).out.split()


def states(cli: Cli) -> dict[str, str]:
    return {job["source"]: job["state"] for job in cli("ls", "--json").json["jobs"]}


def tasks(cli: Cli, key: str) -> list[dict[str, Any]]:
    ledger = SqliteLedger(Path(cli.env["INTERMISSION_LEDGER"]))
    try:
        return [asdict(row) for row in every_task(ledger, key)]
    finally:
        ledger.close()


def all_done(cli: Cli) -> Callable[[], bool]:
    return lambda: set(states(cli).values()) == {"done"}


def stop(cli: Cli, worker: Any) -> str:
    worker.send_signal(signal.SIGTERM)
    ended = cli.end(worker)
    assert ended.code == 0, ended.err
    return ended.err


def heard(process: subprocess.Popen[str], words: str) -> str:
    """The next line with these words that a command says."""
    assert process.stderr is not None
    too_late = threading.Timer(TIMEOUT_S, process.kill)
    too_late.start()
    try:
        return next(line for line in process.stderr if words in line)
    finally:
        too_late.cancel()


def test_workers_share_jobs_and_nothing_runs_twice(fleet: Cli) -> None:
    fleet.env["INTERMISSION_SLOTS"] = "1"
    for n in range(6):
        fleet.source(f"videos/{n}.txt", f"{n}bcdefgh")
    keys = submit(fleet, "letters", "videos")
    assert len(set(keys)) == 6
    assert set(states(fleet).values()) == {"pending"}
    for n in range(3):
        fleet.source(f"held/{n}.txt", f"{n}bcd")
    submit(fleet, "gated", "held")
    workers = [fleet.start("worker") for _ in range(3)]
    fleet.wait_for_call("waiting", times=3)  # so every one of them has begun to work
    fleet.open_gate()
    until(all_done(fleet))
    for worker in workers:
        assert "SIGTERM" in stop(fleet, worker)
    calls = fleet.calls()
    assert (calls["pieces"], calls["whole"]) == (9, 6)
    assert {calls[f"shout {at}"] for at in (0, 2, 4, 6)} == {6}
    for n in range(6):
        whole = fleet.folder / f"videos/shouted/{n}/whole.txt"
        assert whole.read_text() == f"{n}B!CD!EF!GH!"
    assert fleet("ls", "--json").json["unreadable"] == []


def test_a_fleet_on_postgresql_goes_on_after_a_crash_of_its_server(
    fleet: Cli, postgres_server: Callable[..., PostgresServer]
) -> None:
    server = postgres_server()
    fleet.env |= {"INTERMISSION_LEDGER": server.url, "INTERMISSION_LEASE_TTL_S": "30"}
    for n in range(3):
        fleet.source(f"videos/{n}.txt", f"{n}bcd")
    submit(fleet, "gated", "videos")
    workers = [fleet.start("worker") for _ in range(2)]
    fleet.wait_for_call("waiting", times=3)
    server.stop(signal.SIGKILL)
    fleet.open_gate()
    server.start()
    until(all_done(fleet))
    for worker in workers:
        stop(fleet, worker)
    calls = fleet.calls()
    assert {calls[name] for name in ("pieces", "held 0", "held 2", "gather")} == {3}


_FULL = """
CREATE FUNCTION public.disk_is_full() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION USING ERRCODE = 'disk_full', MESSAGE = 'No space left on device'; END $$;
CREATE TRIGGER disk_is_full BEFORE INSERT OR UPDATE ON intermission.tasks
EXECUTE FUNCTION public.disk_is_full();
"""


def test_a_full_disk_of_the_database_is_said_and_waited_for(
    fleet: Cli, postgres: Databases
) -> None:
    """Tasks end meanwhile: their workers keep what they cannot write down."""
    url = as_url(postgres.fresh())
    fleet.env |= {"INTERMISSION_LEDGER": url, "INTERMISSION_LEASE_TTL_S": "60"}
    (key,) = submit(fleet, "gated", fleet.source(text="abcd"))
    worker, server = fleet.start("worker"), fleet.start("serve", "--port", 0)
    address = heard(server, "listening on").split()[-1]
    fleet.wait_for_call("waiting")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_FULL)
        fleet.open_gate()
        assert "is full" in heard(worker, "the disk of the database")
        refused = httpx.post(f"{address}/api/v1/jobs/{key}/cancel")
        assert refused.status_code == 503
        assert "the disk of the database" in refused.json()["detail"]
        connection.execute("DROP TRIGGER disk_is_full ON intermission.tasks")
    until(all_done(fleet))
    stop(fleet, worker)
    calls = fleet.calls()
    assert (calls["pieces"], calls["held 0"], calls["held 2"], calls["gather"]) == (1, 1, 1, 1)


def test_a_fleet_works_behind_pgbouncer(
    fleet: Cli, postgres: Databases, pgbouncer: Callable[[str], str]
) -> None:
    fleet.env["INTERMISSION_LEDGER"] = as_url(pgbouncer(postgres.fresh()))
    for n in range(3):
        fleet.source(f"videos/{n}.txt", f"{n}bcdefgh")
    submit(fleet, "letters", "videos")
    workers = [fleet.start("worker") for _ in range(2)]
    until(all_done(fleet))
    for worker in workers:
        stop(fleet, worker)
    calls = fleet.calls()
    assert calls["pieces"] == calls["whole"] == 3
    assert {calls[f"shout {at}"] for at in (0, 2, 4, 6)} == {3}


def test_a_run_in_place_finds_done_what_a_fleet_has_finished(fleet: Cli) -> None:
    source = fleet.source()
    submit(fleet, "letters", source)
    worker = fleet.start("worker")
    until(all_done(fleet))
    stop(fleet, worker)
    fleet.calls()
    alone = {"INTERMISSION_LEDGER": ""}
    again = fleet.run("letters", source, "--json", env=alone).json
    assert (again["executed"], again["reused"]) == (0, 5)
    assert not fleet.calls()


def test_a_fleet_finds_done_what_a_run_in_place_has_finished(fleet: Cli) -> None:
    source = fleet.source()
    fleet.run("letters", source, env={"INTERMISSION_LEDGER": ""})
    fleet.calls()
    submit(fleet, "letters", source)
    worker = fleet.start("worker")
    until(all_done(fleet))
    stop(fleet, worker)
    assert not fleet.calls()


def test_a_killed_workers_tasks_run_elsewhere(fleet: Cli) -> None:
    source = fleet.source()
    submit(fleet, "gated", source)
    first = fleet.start("worker", start_new_session=True)
    fleet.wait_for_call("waiting", times=2)
    os.killpg(first.pid, signal.SIGKILL)
    second = fleet.start("worker")
    fleet.wait_for_call("waiting", times=4)
    fleet.open_gate()
    until(all_done(fleet))
    stop(fleet, second)
    calls = fleet.calls()
    assert (calls["held 0"], calls["held 2"], calls["gather"]) == (1, 2, 1)


def test_a_busy_worker_keeps_nothing_from_an_idle_one(fleet: Cli) -> None:
    """Short tasks made it claim many; then a long one takes its only slot."""
    fleet.env |= {"INTERMISSION_SLOTS": "1", "INTERMISSION_LEASE_TTL_S": "600"}
    for n in range(3):
        fleet.source(f"videos/{n}.txt", f"{n}bcd")
    submit(fleet, "gated", "videos")
    workers = [fleet.start("worker")]
    fleet.wait_for_call("waiting")
    workers.append(fleet.start("worker"))
    fleet.wait_for_call("waiting", times=2)
    fleet.open_gate()
    until(all_done(fleet))
    for worker in workers:
        stop(fleet, worker)
    assert fleet.calls()["gather"] == 3


def test_a_drained_workers_tasks_go_on_elsewhere_at_once(fleet: Cli) -> None:
    fleet.env |= {"INTERMISSION_LEASE_TTL_S": "600", "INTERMISSION_DRAIN_S": "0"}
    source = fleet.source()
    (key,) = submit(fleet, "gated", source)
    first = fleet.start("worker")
    fleet.wait_for_call("waiting", times=2)
    stop(fleet, first)
    status = fleet("status", key[:8], "--json").json
    assert status["state"] == "running"  # the job is not drained, only that worker was
    assert status["steps"]["held"]["abandoned"] == 2
    second = fleet.start("worker")
    fleet.wait_for_call("waiting", times=4)
    fleet.open_gate()
    until(all_done(fleet))
    stop(fleet, second)


def test_a_stopped_worker_is_fenced(fleet: Cli) -> None:
    """It goes on after its lease: what it then finishes counts once, whoever was first."""
    source = fleet.source()
    submit(fleet, "gated", source)
    first = fleet.start("worker", start_new_session=True)
    fleet.wait_for_call("waiting", times=2)
    os.killpg(first.pid, signal.SIGSTOP)
    try:
        second = fleet.start("worker")
        fleet.wait_for_call("waiting", times=4)
        fleet.open_gate()
        until(all_done(fleet))
    finally:
        os.killpg(first.pid, signal.SIGCONT)
    stop(fleet, first)
    stop(fleet, second)
    assert fleet.calls()["gather"] == 1
    receipts = list(fleet.workspace(source).glob("receipts/held/*.json"))
    assert len(receipts) == 3


def test_jobs_are_looked_at_and_changed_by_their_keys(fleet: Cli) -> None:
    source = fleet.source("x.txt", "aaXb")
    (key,) = submit(fleet, "failing", source)
    worker = fleet.start("worker")
    until(lambda: states(fleet) == {str(source): "failed"})
    assert "risky[1]" in fleet("inspect", key[:8]).out
    assert "found an X at 2" in fleet("why", key[:8], "risky[1]").out
    fleet.open_gate()
    assert "put back" in fleet("retry", key[:8]).err
    fleet("watch", key[:8])
    until(all_done(fleet))
    stop(fleet, worker)
    assert submit(fleet, "failing", source) == [key]
    in_sentence(fleet("status", "nothing", code=2).err, "no job has a key", "nothing")


def test_failures_are_grouped_and_put_back_together(fleet: Cli) -> None:
    for n in range(3):
        fleet.source(f"bad/{n}.txt", f"{n}aXbXc")
    submit(fleet, "failing", "bad")
    worker = fleet.start("worker")
    until(lambda: set(states(fleet).values()) == {"failed"})
    (group,) = fleet("failures", "--json").json["failures"]
    assert (group["pipeline"], group["step"], group["error"]) == ("failing", "risky", "ValueError")
    assert (group["count"], len(group["jobs"])) == (6, 3)
    assert "found an X" in fleet("failures").out
    assert fleet("failures", "--error", "TimedOut").out == ""
    fleet.open_gate()
    assert "put back" in fleet("failures", "--retry").err
    until(all_done(fleet))
    assert fleet("failures").out == ""
    stop(fleet, worker)


def test_a_higher_priority_goes_first(fleet: Cli) -> None:
    fleet.env["INTERMISSION_SLOTS"] = "1"
    late, early = fleet.source("late.txt", "xxyy"), fleet.source("early.txt", "zzww")
    submit(fleet, "letters", late)
    submit(fleet, "letters", early, "--priority", "5")
    worker = fleet.start("worker")
    until(all_done(fleet))
    stop(fleet, worker)
    jobs = fleet("ls", "--json").json["jobs"]
    ended = {Path(job["source"]).name: job["updated"] for job in jobs}
    assert ended["early.txt"] < ended["late.txt"]


def test_what_is_paused_or_too_early_waits(fleet: Cli) -> None:
    early, paused = fleet.source("early.txt", "abcd"), fleet.source("paused.txt", "efgh")
    other = fleet.source("other.txt", "ijkl")
    soon = (datetime.now(UTC) + timedelta(seconds=6)).isoformat()
    submit(fleet, "letters", early, "--not-before", soon)
    (key,) = submit(fleet, "letters", paused)
    assert key in fleet("pause", key[:8]).err
    submit(fleet, "letters", other)
    worker = fleet.start("worker")
    until(lambda: states(fleet)[str(other)] == "done")
    assert states(fleet)[str(paused)] == "pending"
    assert f"job:{key}" in fleet("limit").out
    fleet("resume", key[:8])
    assert fleet("limit").out == ""
    until(all_done(fleet))
    stop(fleet, worker)
    jobs = fleet("ls", "--json").json["jobs"]
    (ended,) = [job["updated"] for job in jobs if job["source"] == str(early)]
    assert datetime.fromisoformat(ended) >= datetime.fromisoformat(soon)
    refused = fleet("submit", f"{PIPELINES}:letters", early, "--not-before", "soon", code=2)
    in_sentence(refused.err, "'soon'", "2026-01-31T20:00")
    in_sentence(fleet("limit", "pipeline:letters", code=2).err, "bound", "--running")


NONE = {"INTERMISSION_PIPELINES": ""}


def test_a_worker_without_the_pipeline_burns_nothing_and_another_runs_the_job(fleet: Cli) -> None:
    (key,) = submit(fleet, "letters", fleet.source())
    without = fleet.start("worker", env=NONE)
    heard(without, "is at work")
    with_it = fleet.start("worker", env={"INTERMISSION_PIPELINES": str(PIPELINES)})
    until(all_done(fleet))
    assert [task["attempts"] for task in tasks(fleet, key)] == [0] * 5
    for worker in (without, with_it):
        stop(fleet, worker)


def test_workers_of_two_versions_each_run_their_own(fleet: Cli) -> None:
    """A rolling upgrade: nothing fails because of it."""
    text = PIPELINES.read_text()
    versions = {"old": text, "new": text.replace("@step(version=1)", "@step(version=2)")}
    keys: dict[str, str] = {}
    workers: list[subprocess.Popen[str]] = []
    for name, code in versions.items():
        file = fleet.folder / name / "pipelines.py"
        file.parent.mkdir()
        file.write_text(code)
        source = fleet.source(f"{name}.txt", f"{name}cdef")
        (keys[name],) = fleet("submit", f"{file}:letters", source).out.split()
        workers.append(fleet.start("worker", env={"INTERMISSION_PIPELINES": str(file)}))
    until(all_done(fleet))
    for key in keys.values():
        assert {task["attempts"] for task in tasks(fleet, key)} == {0}
    for worker in workers:
        stop(fleet, worker)


def test_one_job_with_a_failing_disk_does_not_stop_the_fleet(fleet: Cli) -> None:
    """The worker gives the task back, and goes on with other jobs."""
    (broken,) = submit(fleet, "unreadable", fleet.source("broken.txt"))
    worker = fleet.start("worker")
    heard(worker, "input/output error")
    submit(fleet, "letters", fleet.source("fine.txt"))
    until(lambda: states(fleet)[str(fleet.folder / "fine.txt")] == "done")
    assert worker.poll() is None
    assert [(task["attempts"], task["refusals"]) for task in tasks(fleet, broken)] == [(0, 1)]
    assert "waits for another worker" in fleet("status", broken).out
    (refused,) = fleet("status", broken, "--json").json["refused"]
    assert refused["code"] == "scratch-failed"
    assert "can't run 1 task until" in fleet("workers").out
    stop(fleet, worker)


def test_files_that_appear_become_jobs_once(fleet: Cli) -> None:
    fleet.source("in/old.txt", "abcd")
    fleet.source("in/half.txt.part", "abc")
    watching = ("watch-folder", f"{PIPELINES}:letters", "in", "--every-s", "0.3")
    watch = fleet.start(*watching)
    until(lambda: len(states(fleet)) == 1)
    fleet.source("in/new.txt", "efgh")
    until(lambda: len(states(fleet)) == 2)
    assert {Path(source).name for source in states(fleet)} == {"old.txt", "new.txt"}
    stop(fleet, watch)
    again = fleet.start(*watching)
    fleet.source("in/late.txt", "ijkl")
    until(lambda: len(states(fleet)) == 3)
    again.send_signal(signal.SIGTERM)
    assert len(fleet.end(again).out.split()) == 1


def test_a_file_that_grows_is_not_taken(fleet: Cli) -> None:
    growing = fleet.source("in/growing.txt", "ab")
    complete = threading.Event()

    def grow() -> None:
        with growing.open("a") as file:
            while not complete.wait(0.02):
                file.write("ab")
                file.flush()

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        watch = fleet.start("watch-folder", f"{PIPELINES}:letters", "in", "--every-s", "0.5")
        for n in range(3):
            settled = fleet.source(f"in/{n}.txt", f"{n:02}")
            until(lambda path=settled: str(path) in states(fleet))
        assert str(growing) not in states(fleet)
    finally:
        complete.set()
        writer.join()
    until(lambda: str(growing) in states(fleet))
    stop(fleet, watch)


def test_what_is_missing_is_said_in_a_sentence(cli: Cli) -> None:
    source = cli.source()
    in_sentence(cli("worker", code=2).err, "no ledger", "--ledger")
    submitted = cli("submit", f"{PIPELINES}:letters", source, code=2)
    in_sentence(submitted.err, "no ledger", "--ledger")
    away = {"INTERMISSION_LEDGER": "postgresql://127.0.0.1:1/nothing"}
    for command in (["worker"], ["serve", "--port", 0], ["submit", f"{PIPELINES}:letters", source]):
        in_sentence(cli(*command, env=away, code=4).err, "cannot be reached", "Check that it runs")
    odd = cli("worker", "--ledger", "mysql://x/y", code=2)
    in_sentence(odd.err, "mysql://x/y", "postgresql://")


def test_a_workers_log_says_which_attempt_a_line_is_about(fleet: Cli) -> None:
    (key,) = submit(fleet, "failing", fleet.source(text="abXdef"))
    told = {"INTERMISSION_LOG_FORMAT": "json", "INTERMISSION_LOG_LEVEL": "info"}
    worker = fleet.start("worker", env=told)
    until(lambda: set(states(fleet).values()) == {"failed"})
    log = [json.loads(line) for line in stop(fleet, worker).splitlines() if line.startswith("{")]
    about = [(one["level"], one["task"], one["attempt"]) for one in log if "task" in one]
    assert ("info", "pieces", 1) in about
    failed = [(task, attempt) for level, task, attempt in about if level == "warning"]
    assert failed == [("risky[1]", 1), ("risky[1]", 2)]
    assert {one["job"] for one in log if "task" in one} == {key[:10]}
