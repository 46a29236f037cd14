"""Stopping a run from outside: what is saved, what is given back, who is told."""

from __future__ import annotations

import signal
import subprocess
import time

from command_line import TIMEOUT_S, Cli, until

AGAIN = "Progress is saved; run the same command again."


def test_sigterm_saves_progress_and_the_same_command_goes_on(cli: Cli) -> None:
    source = cli.source()
    process = cli.begin("gated", source, "--drain-s", "0")
    cli.wait_for_call("waiting", times=2)
    process.send_signal(signal.SIGTERM)
    ended = cli.end(process)
    assert ended.code == 75
    assert ended.out == ""
    assert "interrupted (SIGTERM)" in ended.err
    assert AGAIN in ended.err
    assert cli.calls() == {"pieces": 1, "held 0": 1, "held 2": 1, "held 4": 1, "waiting": 2}
    cli.open_gate()
    ended = cli.run("gated", source)
    assert "reused 2 of 5 tasks, ran 3" in ended.err
    assert cli.calls() == {"held 2": 1, "held 4": 1, "waiting": 2, "gather": 1}
    assert (cli.folder / "gated/a/gathered.txt").read_text() == "abcdef"


def test_what_failed_before_an_interruption_is_tried_again_too(cli: Cli) -> None:
    source = cli.source()
    process = cli.begin("interrupted", source, "--drain-s", "0")
    for piece in (0, 2, 4):
        cli.wait_for_call(f"mixed {piece}")
    process.send_signal(signal.SIGTERM)
    assert cli.end(process).code == 75
    cli.open_gate()
    cli.calls()
    assert "reused 1 of 4 tasks, ran 3" in cli.run("interrupted", source).err
    assert cli.calls() == {"mixed 0": 1, "mixed 2": 1, "mixed 4": 1}


def test_gc_leaves_a_workspace_alone_while_a_worker_is_in_it(cli: Cli) -> None:
    source = cli.source()
    process = cli.begin("gated", source)
    cli.wait_for_call("waiting", times=2)
    assert cli("gc").out == "a.txt: in use by a worker, left alone\n"
    cli.open_gate()
    assert cli.end(process).code == 0
    assert cli("gc").out == ""


def test_a_drain_finishes_what_can_finish(cli: Cli) -> None:
    source = cli.source()
    process = cli.begin("gated", source, "--drain-s", "30", "--jsonl")
    cli.wait_for_call("waiting", times=2)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    told = iter(process.stdout.readline, "")
    assert any('"draining"' in line for line in told)
    cli.open_gate()
    assert cli.end(process).code == 75
    cli.calls()
    assert "reused 4 of 5 tasks, ran 1" in cli.run("gated", source).err
    assert cli.calls() == {"gather": 1}


def test_a_second_interrupt_stops_at_once(cli: Cli) -> None:
    source = cli.source()
    process = cli.begin("gated", source, "--drain-s", "600")
    cli.wait_for_call("waiting", times=2)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    told = iter(process.stderr.readline, "")
    assert any("once more stops at once" in line for line in told)
    began_s = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert cli.end(process).code == 75
    assert time.monotonic() - began_s < TIMEOUT_S / 2


def test_an_interrupt_before_any_work_is_one_too(cli: Cli) -> None:
    source = cli.source()
    module = cli.source(
        "slow_to_import.py",
        "import os, time\n"
        "open(os.environ['CALLS'], 'w').write('importing\\n')\n"
        "while True: time.sleep(0.01)\n",
    )
    process = cli.start("run", f"{module}:p", source)
    cli.wait_for_call("importing")
    process.send_signal(signal.SIGINT)
    ended = cli.end(process)
    assert ended.code == 75
    assert ended.err == f"intermission: interrupted. {AGAIN}\n"


def test_interrupted_is_also_said_in_json(cli: Cli) -> None:
    source = cli.source()
    process = cli.begin("gated", source, "--drain-s", "0", "--json")
    cli.wait_for_call("waiting", times=2)
    process.send_signal(signal.SIGTERM)
    document = cli.end(process).json
    assert document["exit_code"] == 75
    assert document["interrupted"] == "SIGTERM"
    (entry,) = document["sources"]
    assert entry["state"] == "draining"
    assert cli("status", source, "--json").json["reason"] == "SIGTERM"


def test_a_killed_run_is_continued_at_once(cli: Cli) -> None:
    source = cli.source()
    process = cli.begin("gated", source)
    cli.wait_for_call("waiting", times=2)
    process.kill()
    assert cli.end(process).code == -signal.SIGKILL
    cli.calls()
    cli.open_gate()
    assert "reused 2 of 5 tasks, ran 3" in cli.run("gated", source).err
    assert cli.calls() == {"held 2": 1, "held 4": 1, "waiting": 2, "gather": 1}


def test_fresh_after_a_kill_does_not_take_the_dead_for_the_living(cli: Cli) -> None:
    source = cli.source()
    process = cli.begin("gated", source)
    cli.wait_for_call("waiting", times=2)
    process.kill()
    cli.end(process)
    cli.open_gate()
    assert "reused 0 of 5 tasks, ran 5" in cli.run("gated", source, "--fresh").err


def test_fresh_is_refused_while_somebody_works_on_it(cli: Cli) -> None:
    source = cli.source()
    process = cli.begin("gated", source)
    cli.wait_for_call("waiting", times=2)
    ended = cli.run("gated", source, "--fresh", code=2)
    assert "another process is working on this job" in ended.err
    assert "a worker is at work" in cli("rebuild", source, code=2).err
    cli.open_gate()
    assert cli.end(process).code == 0


def test_cancel_from_another_process(cli: Cli) -> None:
    source = cli.source()
    fast = ("--lease-ttl-s", "2", "--renew-every-s", "0.2")
    process = cli.begin("gated", source, *fast)
    cli.wait_for_call("waiting", times=2)
    assert "is cancelled" in cli("cancel", source).err
    ended = cli.end(process)
    assert ended.code == 1
    assert "a.txt: cancelled: cancelled on request" in ended.err
    assert cli.calls()["heard of the cancellation"] == 2
    assert "is cancelled" in cli("cancel", source).err, "and it stays so"
    assert cli("why", source, "gather").out == "gather cancelled: cancelled on request\n"
    cli.open_gate()
    assert "reused 2 of 5 tasks, ran 3" in cli.run("gated", source).err


def test_watch_follows_another_process_to_the_end(cli: Cli) -> None:
    source = cli.source()
    process = cli.begin("gated", source)
    cli.wait_for_call("waiting", times=2)
    watcher = cli.start("watch", source, "--jsonl")
    assert watcher.stdout is not None
    first = watcher.stdout.readline()
    assert '"watching"' in first
    assert '"reused"' not in first
    cli.open_gate()
    assert cli.end(process).code == 0
    ended = cli.end(watcher)
    assert ended.code == 0
    assert [(e["task"], e["now"]) for e in ended.events if e["event"] == "task"][-1] == (
        "gather",
        "done",
    )
    assert ended.events[-1]["event"] == "ended"
    assert ended.events[-1]["state"] == "done"


def test_nothing_is_left_running(cli: Cli) -> None:
    source = cli.source()
    process = cli.begin("gated", source)
    cli.wait_for_call("waiting", times=2)
    process.kill()
    cli.end(process)
    until(lambda: not _processes_of(cli))


def _processes_of(cli: Cli) -> str:
    found = subprocess.run(
        ["pgrep", "-f", str(cli.folder)], capture_output=True, text=True, check=False
    )
    return found.stdout
