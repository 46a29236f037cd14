"""`run` always continues: what is reused, what runs again, and what it says about it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import PIPELINES, TIMEOUT_S, Cli, Ended, until

EVERYTHING = {"pieces": 1, "shout 0": 1, "shout 2": 1, "shout 4": 1, "whole": 1}


def summary(ended: Ended) -> str:
    (line,) = (line for line in ended.err.splitlines() if line.startswith("reused "))
    return line


def test_the_output_is_on_standard_output_and_the_rest_is_not(cli: Cli) -> None:
    source = cli.source()
    ended = cli.run("letters", source)
    assert ended.out.splitlines() == ["shouted/a/whole.txt"]
    assert (cli.folder / "shouted/a/whole.txt").read_text() == "AB!CD!EF!"
    assert summary(ended).startswith("reused 0 of 5 tasks, ran 5 in ")
    assert cli.calls() == EVERYTHING


def test_a_finished_job_runs_nothing_and_says_so(cli: Cli) -> None:
    source = cli.source()
    cli.run("letters", source)
    cli.calls()
    ended = cli.run("letters", source)
    assert ended.out.splitlines() == ["shouted/a/whole.txt"]
    assert summary(ended).startswith("reused 5 of 5 tasks, ran 0 in ")
    assert not cli.calls()


def test_an_output_that_was_removed_is_put_back_without_running_anything(cli: Cli) -> None:
    source = cli.source()
    cli.run("letters", source)
    cli.calls()
    shutil.rmtree(cli.folder / "shouted")
    cli.run("letters", source)
    assert (cli.folder / "shouted/a/whole.txt").read_text() == "AB!CD!EF!"
    assert not cli.calls()


@pytest.mark.parametrize("mark", ["!", "?"])
def test_an_output_that_was_edited_is_kept_beside_the_new_one(cli: Cli, mark: str) -> None:
    """Whether the run publishes what it had, or something else."""
    source, output = cli.source(), cli.folder / "shouted/a/whole.txt"
    cli.run("letters", source)
    output.write_text("edited by hand")
    ended = cli.run("letters", source, "--param", f"mark={mark}")
    assert output.read_text() == f"AB{mark}CD{mark}EF{mark}"
    (kept,) = output.parent.glob("whole.edited-*.txt")
    assert kept.read_text() == "edited by hand"
    told = f"whole.txt was edited after it was published; the edited file is now {kept.name}"
    assert ended.err.count(told) == 1
    assert "edited" not in cli.run("letters", source, "--param", f"mark={mark}").err
    assert len(list(output.parent.iterdir())) == 2


def test_some_sources_have_parameters_of_their_own(cli: Cli) -> None:
    """They count more than what the command says for all."""
    usual, other = cli.source(), cli.source("loud-1.txt", "gh")
    (cli.folder / "intermission.toml").write_text(
        '[[overrides]]\npipeline = "letters"\nsources = "loud-*"\nparams = { mark = "?" }\n'
    )
    cli.run("letters", usual, other, "--param", "mark=.")
    assert (cli.folder / "shouted/a/whole.txt").read_text() == "AB.CD.EF."
    assert (cli.folder / "shouted/loud-1/whole.txt").read_text() == "GH?"
    again = cli.run("letters", usual, other, "--param", "mark=.")
    assert "ran 0 in " in summary(again)
    assert "would run 0 tasks" in cli("plan", f"{PIPELINES}:letters", other).out


def test_a_changed_parameter_reuses_the_steps_before_it(cli: Cli) -> None:
    source = cli.source()
    cli.run("letters", source)
    cli.calls()
    ended = cli.run("letters", source, "--param", "mark=?")
    assert summary(ended).startswith("reused 1 of 5 tasks, ran 4 in ")
    assert cli.calls() == {"shout 0": 1, "shout 2": 1, "shout 4": 1, "whole": 1}
    assert (cli.folder / "shouted/a/whole.txt").read_text() == "AB?CD?EF?"
    again = cli.run("letters", source, "--param", "mark=!")
    assert summary(again).startswith("reused 5 of 5 tasks, ran 0 in ")
    assert (cli.folder / "shouted/a/whole.txt").read_text() == "AB!CD!EF!"


def test_fresh_starts_over_and_keeps_the_old_work_in_quarantine(cli: Cli) -> None:
    source = cli.source()
    cli.run("letters", source)
    cli.calls()
    ended = cli.run("letters", source, "--fresh")
    assert summary(ended).startswith("reused 0 of 5 tasks, ran 5 in ")
    assert cli.calls() == EVERYTHING
    kept = cli.workspace(source).glob("quarantine/*/receipts/shout/*.json")
    assert len(list(kept)) == 3


def test_a_plan_in_another_order_is_the_same_plan(cli: Cli) -> None:
    source = cli.source()
    cli.run("letters", source)
    cli.calls()
    for path in cli.workspace(source).glob("ledger.sqlite*"):
        path.unlink()
    shutil.rmtree(cli.workspace(source) / "receipts" / "pieces")
    cli.run("letters", source, env={"SHUFFLED": "1"})
    assert cli.calls() == {"pieces": 1}


def test_a_deleted_ledger_costs_nothing(cli: Cli) -> None:
    source = cli.source()
    cli.run("letters", source)
    cli.calls()
    for path in cli.workspace(source).glob("ledger.sqlite*"):
        path.unlink()
    ended = cli.run("letters", source)
    assert summary(ended).startswith("reused 5 of 5 tasks, ran 0 in ")
    assert not cli.calls()


def test_an_edit_of_the_same_size_under_an_old_time_stamp_is_noticed(cli: Cli) -> None:
    source = cli.source(text="abcdef")
    cli.run("letters", source)
    cli.calls()
    before = source.stat()
    source.write_text("abcdeX")
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    cli.run("letters", source)
    assert cli.calls() == EVERYTHING
    assert (cli.folder / "shouted/a/whole.txt").read_text() == "AB!CD!EX!"


def test_verify_finds_a_flipped_byte_that_left_no_trace(cli: Cli) -> None:
    source = cli.source()
    cli.run("letters", source)
    cli.calls()
    (artifact,) = cli.workspace(source).glob("artifacts/whole/*/*/whole.txt")
    artifact.write_text("AB!CD!EX!")
    # As if a disk had rotted: everything was looked at after that, says the memory of looks.
    key = cli("status", source, "--json").json["job"]
    look = cli.workspace(source) / "looks" / f"{key}.json"
    look.parent.mkdir(exist_ok=True)
    look.write_text(json.dumps({"at_ms": 10**15}))
    cli.run("letters", source, "--verify")
    assert not cli.calls(), "the output is in its place: nothing needs the artifact"
    (cli.folder / "shouted/a/whole.txt").unlink()
    cli.run("letters", source, "--verify")
    assert cli.calls() == {"whole": 1}
    assert (cli.folder / "shouted/a/whole.txt").read_text() == "AB!CD!EF!"
    (bad,) = cli.workspace(source).glob("quarantine/*/artifacts/whole/*/*/whole.txt")
    assert bad.read_text() == "AB!CD!EX!"


def test_sources_with_the_same_stem_do_not_share_an_output_folder(cli: Cli) -> None:
    cli.source("talk.txt", "ab")
    cli.source("talk.md", "cd")
    ended = cli.run("letters", "talk.txt", "talk.md")
    assert sorted(ended.out.splitlines()) == [
        "shouted/talk.md/whole.txt",
        "shouted/talk/whole.txt",
    ]
    assert (cli.folder / "shouted/talk/whole.txt").read_text() == "AB!"
    assert (cli.folder / "shouted/talk.md/whole.txt").read_text() == "CD!"
    assert cli.run("letters", "talk.md", "talk.txt").out.splitlines() == [
        "shouted/talk.md/whole.txt",
        "shouted/talk/whole.txt",
    ]


def test_a_folder_is_taken_whole_without_what_was_made_in_it(cli: Cli) -> None:
    for name in ("in/one.txt", "in/deep/two.txt", "in/deep/three.md"):
        cli.source(name, "ab")
    made = cli.run("letters", "in", "--include", "*.txt").out.splitlines()
    assert made == ["in/shouted/one/whole.txt", "in/deep/shouted/two/whole.txt"]
    again = cli.run("letters", "in", "--include", "*.txt")
    assert again.out.splitlines() == made
    assert summary(again).startswith("reused 6 of 6 tasks, ran 0 in ")
    globbed = cli.run("letters", "in/**/*.md")
    assert globbed.out.splitlines() == ["in/deep/shouted/three/whole.txt"]


def test_json_is_one_document(cli: Cli) -> None:
    source = cli.source()
    ended = cli.run("letters", source, "--json")
    document = ended.json
    assert (document["v"], document["event"], document["exit_code"]) == (1, "summary", 0)
    assert (document["total"], document["reused"], document["executed"]) == (5, 0, 5)
    (entry,) = document["sources"]
    assert entry["state"] == "done"
    assert entry["steps"] == {"pieces": {"done": 1}, "shout": {"done": 3}, "whole": {"done": 1}}
    assert entry["outputs"] == [str(cli.folder / "shouted/a/whole.txt")]


def test_jsonl_tells_every_change_in_order(cli: Cli) -> None:
    source = cli.source()
    events = cli.run("letters", source, "--jsonl").events
    assert {event["v"] for event in events} == {1}
    assert events[0]["event"] == "opened"
    assert [event["event"] for event in events[-2:]] == ["closed", "summary"]
    changes = [event for event in events if event["event"] in ("task", "job")]
    assert [event["seq"] for event in changes] == sorted(event["seq"] for event in changes)
    done = [event["task"] for event in changes if event["now"] == "done" and event["task"]]
    assert sorted(done) == ["pieces", "shout[0]", "shout[1]", "shout[2]", "whole"]
    assert changes[-1]["event"] == "job"
    assert changes[-1]["now"] == "done"


def test_jsonl_tells_the_end_even_to_those_who_looked_seldom(cli: Cli) -> None:
    source = cli.source()
    code = "import intermission.cli.jsonl_reporter as lines, intermission.cli as cli\n"
    code += "lines.EVERY_S = 1e9\ncli.main()\n"
    command = [sys.executable, "-c", code, "run", f"{PIPELINES}:letters", str(source), "--jsonl"]
    ended = subprocess.run(
        command, env=cli.env, capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [event["event"] for event in events[-3:]] == ["job", "closed", "summary"]
    assert sum(event["event"] == "task" and event["now"] == "done" for event in events) == 5


def test_a_second_jsonl_run_does_not_tell_the_first_ones_story(cli: Cli) -> None:
    source = cli.source()
    cli.run("letters", source)
    events = cli.run("letters", source, "--jsonl").events
    assert [event["event"] for event in events] == ["opened", "closed", "summary"]
    assert events[0]["reused"] == 5


def test_short_tasks_do_not_wait_behind_one_that_turns_out_long(cli: Cli) -> None:
    source = cli.source(text=f"{'ab' * 30}X.{'ab' * 60}")
    running = cli.begin("jammed", source, "--slots", "2")
    path = cli.folder / "calls"
    until(lambda: path.exists() and len(set(path.read_text().splitlines())) == 1 + 91)
    cli.open_gate()
    assert cli.end(running).code == 0
    assert set(cli.calls().values()) == {1}


def test_what_waits_behind_a_long_task_is_begun_once_and_all_of_it(cli: Cli) -> None:
    """Although the slot is slow to see that it was given other work meanwhile."""
    source = cli.source(text=f"{'ab' * 30}X.{'ab' * 10}")
    cli.run("dawdling", source, "--slots", "1")
    calls = cli.calls()
    assert len(calls) == 1 + 41
    assert set(calls.values()) == {1}


def test_some_sources_failed(cli: Cli) -> None:
    cli.source("good.txt", "ab")
    cli.source("bad.txt", "XX")
    ended = cli.run("failing", "good.txt", "bad.txt", code=3)
    assert ended.out.splitlines() == ["failing/good/sums.txt"]
    assert "1 of 2 sources done" in summary(ended)


def test_the_settings_file_and_the_environment_count(cli: Cli) -> None:
    source = cli.source()
    Path(cli.folder, "intermission.toml").write_text('workspace_name = ".work"\n')
    cli.run("letters", source)
    assert (cli.folder / ".work" / "a.txt" / "ledger.sqlite").exists()
