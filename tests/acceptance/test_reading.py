"""The commands that look: they say what is so, and change nothing."""

from __future__ import annotations

import re

import pytest
from command_line import PIPELINES, Cli, in_sentence

LETTERS = f"{PIPELINES}:letters"


def test_plan_leaves_no_trace(cli: Cli) -> None:
    source = cli.source()
    ended = cli("plan", LETTERS, source)
    assert "a.txt: would run 1 task, reuse 0" in ended.out
    assert "run    pieces: it never ran before" in ended.out
    assert "later  shout" in ended.out
    assert sorted(path.name for path in cli.folder.iterdir()) == ["a.txt"]


def test_plan_says_what_would_run_and_why(cli: Cli) -> None:
    source = cli.source()
    cli.run("letters", source)
    cli.calls()
    same = cli("plan", LETTERS, source)
    assert "would run 0 tasks, reuse 5" in same.out
    other = cli("plan", LETTERS, source, "--param", "mark=?")
    assert "would run 4 tasks, reuse 1" in other.out
    assert 'run    shout x3: parameter mark was "!", is "?"' in other.out
    assert "run    whole: input shout changed" in other.out
    listed = cli("plan", LETTERS, source, "-p", "mark=?", "--tasks", "--json").json
    (entry,) = listed["sources"]
    would = {task["task"]: task["would"] for task in entry["tasks"]}
    assert would == {
        "pieces": "reuse",
        "shout[0]": "run",
        "shout[1]": "run",
        "shout[2]": "run",
        "whole": "run",
    }
    cli.run("letters", source, "--param", "mark=?")
    assert cli.calls().keys() == {"shout 0", "shout 2", "shout 4", "whole"}


def test_plan_sees_a_lost_artifact_and_light_results(cli: Cli) -> None:
    source = cli.source()
    cli.run("letters", source)
    (artifact,) = cli.workspace(source).glob("artifacts/whole/*/*/whole.txt")
    artifact.unlink()
    assert "run    whole: its artifact whole.txt is missing" in cli("plan", LETTERS, source).out
    feather = f"{PIPELINES}:feather"
    assert "would run 5 tasks" not in cli("plan", feather, source).out
    cli.run("feather", source)
    assert "would run 0 tasks, reuse 5" in cli("plan", feather, source).out


def test_plan_without_a_source_shows_the_pipeline(cli: Cli) -> None:
    ended = cli("plan", LETTERS)
    assert "whole   reduce  <- every shout" in ended.out
    assert "--mark MARK  [default: !]" in ended.out
    document = cli("plan", LETTERS, "--json").json
    size = {"type": "int", "description": "", "required": False, "default": 2}
    assert document["parameters"]["size"] == size


def test_why_names_the_parameter_that_changed(cli: Cli) -> None:
    source = cli.source()
    cli.run("letters", source)
    first = cli("why", source, "shout[2]").out
    assert first.startswith("shout[2] ran because it never ran before")
    cli.run("letters", source, "--param", "mark=?")
    second = cli("why", source, "shout[2]").out
    assert second.startswith('shout[2] ran because parameter mark was "!", is "?"; attempt ')
    assert re.search(r"attempt \d{5}-[0-9a-f]{12} from \d{4}-\d\d-\d\dT", second)
    reused = cli("why", source, "pieces").out
    assert re.match(r"pieces reused: the receipt of attempt \S+ from \S+Z has the same key", reused)
    cli.run("letters", source, "--param", "size=3")
    assert "no earlier run has this chunk" in cli("why", source, "shout[0]").out
    document = cli("why", source, "pieces", "--json").json
    assert document["why"] == "ran because parameter size was 2, is 3" + document["why"][38:]


def test_why_of_tasks_that_have_not_run(cli: Cli) -> None:
    source = cli.source(text="XbXdef")
    cli.run("failing", source, code=1)
    assert "failed after 2 of its attempts: ValueError" in cli("why", source, "risky[0]").out
    assert "cancelled: risky[" in cli("why", source, "sums").out


def test_ls_status_and_inspect(cli: Cli) -> None:
    source = cli.source("in/a.txt")
    cli.run("letters", source)
    assert cli("ls", "--json").json["jobs"][0]["source"] == str(source)
    listed = cli("ls", "in")
    (row,) = listed.out.splitlines()[1:]
    key, state, done, _, pipeline, where = row.split()
    assert (state, done, pipeline, where) == ("done", "5/5", "letters", "in/a.txt")
    assert cli("status", key).out.splitlines()[-2].split() == ["shout", "3", "3"]
    assert cli("status", source, "--json").json["steps"]["shout"] == {"done": 3}
    tasks = cli("inspect", key, "--json").json["tasks"]
    assert [task["task"] for task in tasks] == [
        "pieces",
        "shout[0]",
        "shout[1]",
        "shout[2]",
        "whole",
    ]
    assert tasks[1]["chunk"] == {"start": 0, "stop": 2}
    assert cli("inspect", key, "--state", "failed", "--json").json["tasks"] == []
    in_sentence(cli("inspect", key, "--state", "fine", code=2).err, "no task state 'fine'")


def test_inspect_knows_all_about_a_task(cli: Cli) -> None:
    source = cli.source()
    cli.run("letters", source)
    whole = cli("inspect", source, "whole", "--json").json
    (file,) = whole["receipt"]["files"]
    assert (file["name"], file["size_bytes"]) == ("whole.txt", 9)
    assert [event["now"] for event in whole["history"]] == ["pending", "leased", "done"]
    assert "sha256 " + file["sha256"] in cli("inspect", source, "whole").out
    by_key = cli("inspect", source, whole["key"][:12], "--json").json
    assert by_key["task"] == "whole"
    said = cli("inspect", source, "shout", code=2).err
    in_sentence(said, "more than one task is named 'shout'")


def test_a_task_without_output_has_no_log(cli: Cli) -> None:
    source = cli.source()
    cli.run("letters", source)
    assert cli("logs", source, "pieces").err == "pieces wrote nothing.\n"
    shouted = cli("logs", source, "shout[1]", "--json").json
    assert "shouting 2" in shouted["text"]
    assert shouted["attempt"] == 1


def test_a_job_of_a_source_that_is_gone_is_still_there(cli: Cli) -> None:
    source = cli.source()
    cli.run("letters", source)
    source.unlink()
    assert "a.txt" in cli("status", source).out


def test_equal_sources_have_equal_jobs_each_of_its_own(cli: Cli) -> None:
    one, two = cli.source("one.txt"), cli.source("two.txt")
    cli.run("letters", one, two)
    key = cli("status", one, "--json").json["job"]
    assert cli("status", two, "--json").json["job"] == key
    in_sentence(cli("status", key, code=2).err, "one.txt", "two.txt", "Name the source")


def test_watch_tells_the_whole_story_of_an_ended_job(cli: Cli) -> None:
    source = cli.source()
    cli.run("letters", source)
    lines = cli("watch", source, "--after", 0).out.splitlines()
    assert lines[-1] == "done"
    assert any(line.endswith("whole  done") for line in lines)
    assert cli("watch", source).out.splitlines()[-1] == "done"


def test_gc_keeps_its_grace(cli: Cli) -> None:
    source = cli.source()
    cli.run("letters", source)
    stray = cli.workspace(source) / "artifacts/whole/stray/00001-x/left.txt"
    stray.parent.mkdir(parents=True)
    stray.write_text("left behind")
    assert "1 waiting for the next pass" in cli("gc").out
    short = {"INTERMISSION_LEASE_TTL_S": "0.02", "INTERMISSION_RENEW_EVERY_S": "0.01"}
    in_sentence(cli("gc", "--grace-s", 1, code=2).err, "shorter than a lease")
    dry = cli("gc", "--grace-s", 0.02, "--dry-run", "--json", env=short).json
    assert dry["sources"][0]["removed"] == 1
    assert stray.exists()
    assert "removed 1 file (11 B)" in cli("gc", "--grace-s", 0.02, env=short).out
    assert not stray.exists()
    assert "reused 5 of 5 tasks" in cli.run("letters", source).err


def test_config_says_where_each_value_came_from(cli: Cli) -> None:
    (cli.folder / "intermission.toml").write_text("drain_s = 7\nslots = 9\n")
    shown = cli("config", "show", "--origin", env={"INTERMISSION_SLOTS": "3"}).out
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in shown.splitlines()}
    assert rows["slots"] == "3 environment INTERMISSION_SLOTS"
    assert rows["drain_s"] == f"7.0 {cli.folder}/intermission.toml"
    assert rows["lease_ttl_s"] == "60.0 default"
    settings = cli("config", "show", "--json").json["settings"]
    assert settings["drain_s"] == {"value": 7.0, "origin": f"{cli.folder}/intermission.toml"}
    wrong = cli("config", "show", env={"INTERMISSION_SLOTS": "many"}, code=2)
    in_sentence(wrong.err, "environment INTERMISSION_SLOTS", "'many'")


def test_doctor_finds_this_machine_fit(cli: Cli) -> None:
    findings = {one["name"]: one for one in cli("doctor", "--json").json["findings"]}
    assert all(one["well"] for one in findings.values())
    assert {"python", "sqlite", "file system", "create-only", "slots"} <= findings.keys()
    assert list(cli.folder.iterdir()) == []


@pytest.mark.parametrize("command", ["ls", "gc"])
def test_a_place_without_jobs_is_no_error(cli: Cli, command: str) -> None:
    assert cli(command).out == ""
