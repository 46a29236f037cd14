"""`from intermission import run, submit, Client`: what a script or a notebook does with jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from command_line import PIPELINES, TIMEOUT_S, Cli, until

import intermission
from intermission.errors import (
    LedgerRefused,
    NoPipeline,
    ParameterError,
    SourceError,
    TaskError,
    UsageError,
)
from intermission.model import JobState
from intermission.operations.documents import JobDocument

LETTERS, GATED, FAILING = (f"{PIPELINES}:{name}" for name in ("letters", "gated", "failing"))
SECRET = "open sesame"


@pytest.fixture
def here(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """This process, in the folder and with the environment that commands get."""
    for name, value in cli.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(cli.folder)
    return cli


def test_a_run_returns_the_document_that_json_prints(here: Cli) -> None:
    here.source()
    done = intermission.run(LETTERS, "a.txt", size=3)
    assert Path(done.sources[0].outputs[0]).read_text() == "ABC!DEF!"
    assert (done.exit_code, done.executed, done.reused) == (0, 4, 0)
    again = intermission.run(LETTERS, "a.txt", size=3)
    printed = here.run("letters", "a.txt", "--size", "3", "--json").json
    assert again.model_dump(mode="json") == {k: v for k, v in printed.items() if k != "v"}


def test_progress_is_told_to_the_end(here: Cli) -> None:
    here.source()
    told: list[JobDocument] = []
    intermission.run(LETTERS, Path("a.txt"), on_progress=told.append)
    assert told[-1].state is JobState.DONE
    assert [job.total("done") for job in told] == sorted(job.total("done") for job in told)
    assert told[-1].total("done") == told[-1].total() == 5


def test_a_run_outside_the_main_thread_does_the_same(here: Cli) -> None:
    here.source()
    here.source("b.txt", "ghijkl")
    before = signal.getsignal(signal.SIGINT)
    with ThreadPoolExecutor(2) as notebooks:
        runs = [notebooks.submit(intermission.run, LETTERS, name) for name in ("a.txt", "b.txt")]
        texts = [Path(one.result().sources[0].outputs[0]).read_text() for one in runs]
    assert texts == ["AB!CD!EF!", "GH!IJ!KL!"]
    assert signal.getsignal(signal.SIGINT) is before


def test_several_sources_run_together_and_a_folder_is_searched(here: Cli) -> None:
    for name in ("texts/a.txt", "texts/b.txt", "texts/c.md"):
        here.source(name, name)
    done = intermission.run(LETTERS, ["texts"], include=["*.txt"], settings={"slots": 1})
    assert [Path(one.source).name for one in done.sources] == ["a.txt", "b.txt"]


def test_a_failed_task_is_in_the_document(here: Cli) -> None:
    here.source(text="abXd")
    failed = intermission.run(FAILING, "a.txt")
    assert failed.exit_code == 1
    assert "found an X at 2" in (failed.sources[0].failures[0].message or "")
    with pytest.raises(TaskError, match=r"risky\[1\].*found an X at 2"):
        failed.raise_for_failure()
    here.open_gate()
    assert intermission.run(FAILING, "a.txt").raise_for_failure().exit_code == 0


def test_wrong_use_raises_what_commands_exit_with(here: Cli) -> None:
    here.source()
    with pytest.raises(NoPipeline):
        intermission.run("nosuch", "a.txt")
    with pytest.raises(ParameterError):
        intermission.run(LETTERS, "a.txt", sizes=3)
    with pytest.raises(SourceError):
        intermission.run(LETTERS, "nowhere.txt")
    with pytest.raises(UsageError, match="slotz"):
        intermission.run(LETTERS, "a.txt", settings={"slotz": 3})
    with pytest.raises(UsageError, match="no source"):
        intermission.run(LETTERS, [])


def test_what_the_callback_raises_ends_the_run_and_progress_is_saved(here: Cli) -> None:
    here.source()

    def enough(job: JobDocument) -> None:
        if job.total("done") >= 2:
            raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        intermission.run(GATED, "a.txt", on_progress=enough)
    here.open_gate()
    here.calls()
    assert intermission.run(GATED, "a.txt").exit_code == 0
    assert "pieces" not in here.calls()


SCRIPT = f"""
import threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
import intermission
try:
    intermission.run("{GATED}", "a.txt")
except intermission.Interrupted as e:
    print(type(e).__name__, e)
"""


def test_an_interrupt_drains_and_raises(here: Cli) -> None:
    here.source()
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env=here.env | {"INTERMISSION_DRAIN_S": "0"},
        cwd=here.folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    here.started.append(script)
    here.wait_for_call("waiting")
    script.send_signal(signal.SIGINT)
    out, _ = script.communicate(timeout=TIMEOUT_S)
    assert "Interrupted interrupted (SIGINT)" in out
    assert "again" in out
    here.open_gate()
    assert intermission.run(GATED, "a.txt").reused >= 2


def test_nothing_outlives_a_killed_script(here: Cli) -> None:
    here.source()
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], env=here.env, cwd=here.folder, text=True
    )
    here.started.append(script)
    here.wait_for_call("waiting")
    (reaper,) = children(script.pid)
    script.kill()
    script.wait()
    until(lambda: not Path(f"/proc/{reaper}").exists())


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def test_the_names_are_offered_lazily() -> None:
    code = (
        "import sys, intermission; assert 'intermission.client' not in sys.modules; "
        "from intermission import Client, run, submit; print(run.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("intermission.client")


@pytest.fixture
def ledger(here: Cli) -> str:
    """A shared ledger with a worker."""
    path = str(here.folder / "shared.sqlite")
    here.start("worker", "--ledger", path)
    return path


def test_a_job_is_submitted_followed_and_read(here: Cli, ledger: str) -> None:
    here.source()
    sent = intermission.submit(LETTERS, "a.txt", ledger=ledger, size=3, priority=5)
    client = intermission.Client(ledger=ledger)
    (job,) = sent.jobs
    assert job.new
    assert job.job is not None
    told: list[JobDocument] = []
    ended = client.wait(job.job, on_progress=told.append, timeout_s=TIMEOUT_S)
    assert (ended.state, ended.priority, told[-1]) == (JobState.DONE, 5, ended)
    printed = here("ls", "--ledger", ledger, "--json").json["jobs"]
    assert [one.model_dump(mode="json") for one in client.jobs()] == printed
    assert {task.state for task in client.tasks(job.job)} == {"done"}
    assert client.job("a.txt") == ended
    (output,) = client.outputs(job.job)
    assert (output.name, output.size_bytes) == ("whole.txt", 8)
    copy = client.download(job.job, output.name, here.folder / "copy.txt")
    assert copy.read_text() == "ABC!DEF!"
    assert not intermission.submit(LETTERS, "a.txt", ledger=ledger, size=3).jobs[0].new


def test_a_job_is_cancelled_and_retried(here: Cli, ledger: str) -> None:
    here.source()
    client = intermission.Client(ledger=ledger)
    key = client.submit(GATED, "a.txt").jobs[0].job
    assert key is not None
    here.wait_for_call("waiting")
    assert client.cancel(key).state is JobState.CANCELLED
    here.open_gate()
    retried = client.retry(key)
    assert retried.put_back > 0
    assert retried.job.job == key
    assert client.wait(key, timeout_s=TIMEOUT_S).state is JobState.DONE
    with pytest.raises(UsageError, match="done"):
        client.cancel(key)


def test_waiting_ends_at_its_time(here: Cli) -> None:
    here.source()
    client = intermission.Client(ledger="nobody.sqlite")
    key = client.submit(LETTERS, "a.txt").jobs[0].job
    assert key is not None
    with pytest.raises(TimeoutError, match="pending"):
        client.wait(key, timeout_s=0.1)


def test_what_cannot_be_submitted_is_raised_or_told(here: Cli) -> None:
    here.source()
    bad = os.fsdecode(b"caf\xe9.txt")
    here.source(bad)
    client = intermission.Client(ledger="nobody.sqlite")
    with pytest.raises(SourceError, match="UTF-8"):
        client.submit(LETTERS, bad)
    sent = client.submit(LETTERS, ["a.txt", bad])
    assert [(one.job is None, one.error is None) for one in sent.jobs] == [
        (False, True),
        (True, False),
    ]
    with pytest.raises(UsageError, match="ledger"):
        intermission.submit(LETTERS, "a.txt")


def test_a_client_without_a_ledger_sees_runs_in_place(here: Cli) -> None:
    here.source("texts/a.txt")
    intermission.run(LETTERS, "texts/a.txt")
    client = intermission.Client(place="texts")
    (job,) = client.jobs()
    assert job.state is JobState.DONE
    assert [one.name for one in client.outputs(job.job)] == ["whole.txt"]


def test_a_server_is_asked_with_its_secret(here: Cli) -> None:
    here.source()
    process = here.start("serve", "--port", "0", env={"INTERMISSION_ADMIN_SECRET": SECRET})
    assert process.stderr is not None
    line = next(line for line in process.stderr if line.startswith("listening on "))
    threading.Thread(target=process.stderr.read, daemon=True).start()
    url = line.removeprefix("listening on ").strip()
    here.start("worker", "--ledger", "intermission-data/ledger.sqlite")
    with pytest.raises(LedgerRefused):
        intermission.Client(url, secret="wrong").jobs()
    client = intermission.Client(url, secret=SECRET)
    sent = intermission.submit("letters", "a.txt", server=url, secret=SECRET)
    key = sent.jobs[0].job
    assert key is not None
    assert client.wait(key, timeout_s=TIMEOUT_S).state is JobState.DONE
    assert [job.job for job in client.jobs(states=["done"])] == [key]
    (output,) = client.outputs(key)
    assert client.download(key, output.name, here.folder / "copy.txt").read_text() == "AB!CD!EF!"
    with pytest.raises(UsageError, match=r"whole\.txt"):
        client.download(key, "nothing.txt", here.folder / "none.txt")
    assert json.loads(client.job(key).model_dump_json())["state"] == "done"


def test_a_client_has_one_place_to_ask() -> None:
    with pytest.raises(UsageError, match="not both"):
        intermission.Client("http://localhost:8400", ledger="shared.sqlite")
