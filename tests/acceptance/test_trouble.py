"""Tasks that go wrong: a clear end, the right exit code, and a way on."""

from __future__ import annotations

import json

from command_line import Cli, in_sentence, until


def test_a_failed_task_is_named_with_its_error_and_its_log(cli: Cli) -> None:
    source = cli.source(text="abXdef")
    ended = cli.run("failing", source, code=1)
    assert ended.out == ""
    assert "risky[1]: ValueError: found an X at 2 (2 attempts)" in ended.err
    assert cli.calls() == {"pieces": 1, "risky 0": 1, "risky 2": 2, "risky 4": 1}
    (hint,) = (line for line in ended.err.splitlines() if "intermission logs" in line)
    _, key, task = hint.partition("intermission ")[2].split()
    log = cli("logs", key, task.strip("'"))
    assert 'raise ValueError(f"found an X at {piece.start}")' in log.out
    assert "attempt 2:" in log.err
    assert "found an X" in cli("logs", key, "risky[1]", "--attempt", "1").out
    assert "Attempts with a log: 1, 2" in cli("logs", key, "risky[1]", "--attempt", 7, code=2).err


def test_run_gives_a_failed_task_new_attempts(cli: Cli) -> None:
    source = cli.source(text="abXdef")
    cli.run("failing", source, code=1)
    cli.calls()
    cli.open_gate()
    assert "reused 3 of 5 tasks, ran 2" in cli.run("failing", source).err
    assert cli.calls() == {"risky 2": 1}


def test_retry_takes_only_the_tasks_it_is_told(cli: Cli) -> None:
    source = cli.source(text="XbcdXf")
    cli.run("failing", source, code=1)
    cli.calls()
    cli.open_gate()
    ended = cli("retry", source, "--task", "risky[0]", code=1)
    assert cli.calls() == {"risky 0": 1}
    assert "risky[2]: ValueError" in ended.err
    cli("retry", source)
    assert cli.calls() == {"risky 4": 1}
    assert (cli.folder / "failing/a/sums.txt").read_text() == "XbcdXf"


def test_retry_of_a_done_task_wants_fresh(cli: Cli) -> None:
    source = cli.source()
    cli.run("letters", source)
    cli.calls()
    in_sentence(
        cli("retry", source, "--task", "shout[1]", code=2).err, "shout[1] is done", "--fresh"
    )
    cli("retry", source, "--task", "shout[1]", "--fresh")
    assert cli.calls() == {"shout 2": 1, "whole": 1}
    cli("retry", source, "--fresh")
    assert cli.calls().total() == 5


def test_retry_refuses_to_become_another_job(cli: Cli) -> None:
    source = cli.source(text="abXdef")
    cli.run("failing", source, code=1)
    source.write_text("abXdeg")
    ended = cli("retry", source, code=2)
    assert "is no longer job" in ended.err


def test_a_task_that_kills_its_slot_fails_and_the_others_are_done(cli: Cli) -> None:
    source = cli.source()
    ended = cli.run("poison", source, "--json", code=1)
    assert cli.calls() == {"pieces": 1, "deadly 0": 2, "deadly 2": 1, "deadly 4": 1}
    (entry,) = ended.json["sources"]
    assert entry["steps"]["deadly"] == {"done": 2, "failed": 1}
    (failure,) = entry["failures"]
    assert failure["task"] == "deadly[0]"
    assert failure["error"] == "SlotDied"
    assert "SIGKILL" in failure["message"]
    assert "the slot was killed by SIGKILL" in ended.err


def test_a_plan_with_a_chunk_twice_is_refused(cli: Cli) -> None:
    source = cli.source()
    ended = cli.run("repeated", source, code=1)
    assert 'plan twice returned the chunk {"start":0,"stop":1} more than once' in ended.err
    assert "(1 attempt)" in ended.err


def test_a_time_out_ends_a_task(cli: Cli) -> None:
    source = cli.source()
    ended = cli.run("patient", source, code=1)
    assert "endless ran longer than its time-out of 0.3 s" in ended.err
    assert cli.calls() == {"endless": 1}


def test_a_gap_is_no_failure_but_is_told(cli: Cli) -> None:
    source = cli.source()
    ended = cli.run("gappy", source)
    assert (cli.folder / "gappy/a/kept.txt").read_text() == "[None, 2, 4]"
    assert "a.txt: gaps" in ended.err
    assert "maybe[0]: ValueError: no luck (1 attempt)" in ended.err
    assert "ran because it never ran before" in cli("why", source, "kept").out


def test_light_steps_leave_no_receipts_and_are_not_run_twice(cli: Cli) -> None:
    source = cli.source()
    cli.run("feather", source)
    assert cli.calls() == {"pieces": 1, "quick 0": 1, "quick 2": 1, "quick 4": 1, "length": 1}
    assert {path.name for path in cli.workspace(source).glob("receipts/*")} == {"pieces"}
    ended = cli.run("feather", source)
    assert "reused 5 of 5 tasks" in ended.err
    assert not cli.calls()


def test_a_label_that_nobody_offers_is_an_error_and_no_endless_wait(cli: Cli) -> None:
    source = cli.source()
    ended = cli.run("needy", source, code=4)
    assert "step heavy needs 'gpu', which no worker here offers" in ended.err
    assert "--can gpu" in ended.err
    assert not cli.calls()
    cli.run("needy", source, "--can", "gpu")
    assert cli.calls()["heavy 0"] == 1
    assert "reused 4 of 4 tasks" in cli.run("needy", source).err


def test_a_deferred_task_is_finished_from_outside(cli: Cli) -> None:
    source = cli.source()
    process = cli.begin("deferred", source)
    cli.wait_for_call("outside")
    until(lambda: cli.end(cli.start("finish", "token-a.txt", "--result", "nine")).code == 2)
    until(lambda: "waits for an outside event" in cli("status", source).out)
    wrong = cli("finish", "token-a.txt", "--result", '"nine"', code=2)
    in_sentence(wrong.err, "the result of outside is not what the step returns", "valid integer")
    cli("finish", "token-a.txt", "--result", "9")
    assert cli.end(process).code == 0
    assert (cli.folder / "deferred/a/answer.txt").read_text() == "9"
    other = cli("finish", "token-a.txt", "--result", "8", code=2)
    in_sentence(other.err, "is done, with the result that came first")
    assert "reused 2 of 2 tasks" in cli.run("deferred", source).err
    assert cli.calls() == {"outside": 1}
    receipt = cli("inspect", source, "outside", "--json").json["receipt"]
    assert json.loads(receipt["result"]) == 9
