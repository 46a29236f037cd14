"""Why nothing happens: `why` and `status` say what keeps a task from starting."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from command_line import PIPELINES, Cli, until


@pytest.fixture
def fleet(cli: Cli) -> Cli:
    cli.env["INTERMISSION_LEDGER"] = str(cli.folder / "shared" / "ledger.sqlite")
    return cli


def submit(cli: Cli, pipeline: str, *args: object) -> str:
    (key,) = cli("submit", f"{PIPELINES}:{pipeline}", cli.source(), *args).out.split()
    return key


def waiting(cli: Cli, key: object) -> list[dict[str, Any]]:
    return cli("status", key, "--json").json["waiting"]


def wait_until_idle(cli: Cli, key: str, state: str, step: str) -> None:
    until(lambda: cli("status", key, "--json").json["steps"][step].get(state))


@pytest.mark.parametrize("what", ["job", "pipeline", "label"])
def test_what_is_paused_says_so(fleet: Cli, what: str) -> None:
    key = submit(fleet, "needy")
    step = "heavy[0]" if what == "label" else "pieces"
    if what == "label":
        worker = fleet.start("worker")
        wait_until_idle(fleet, key, "pending", "heavy")
    name = {"job": f"job:{key}", "pipeline": "pipeline:needy", "label": "label:gpu"}[what]
    fleet("pause", name)
    if what == "label":
        worker.send_signal(signal.SIGTERM)
        fleet.end(worker)
    short = name.replace(key, key[:10])
    said = fleet("why", key, step).out
    assert f"waits because {short} is paused" in said
    assert f"intermission resume {short}" in said
    assert "never ran before" in said
    assert f"{step.removesuffix('[0]')} waits: {short} is paused." in fleet("status", key).out
    (wait,) = waiting(fleet, key)
    assert (wait["code"], wait["name"]) == ("paused", name)
    assert wait["steps"] == [step.removesuffix("[0]")]
    (also,) = fleet("why", key, step, "--json").json["waiting"]
    assert also["code"] == "paused"
    fleet("resume", name)
    assert "paused" not in fleet("why", key, step).out


def test_a_limit_that_is_reached_is_named_with_what_runs(fleet: Cli) -> None:
    key = submit(fleet, "gated")
    fleet("limit", "pipeline:gated", "--running", "1")
    fleet("limit", "label:gpu", "--running", "1")
    worker = fleet.start("worker", "--drain-s", "0")
    fleet.wait_for_call("waiting")
    assert "waits because pipeline:gated is reached: 1 of 1 run" in fleet("why", key, "held[2]").out
    assert "waits: pipeline:gated is reached: 1 of 1 run." in fleet("status", key).out
    (wait,) = waiting(fleet, key)
    assert (wait["code"], wait["name"]) == ("limit", "pipeline:gated")
    worker.send_signal(signal.SIGTERM)
    fleet.end(worker)


def test_a_rate_and_a_step_of_bounded_concurrency_are_named(fleet: Cli) -> None:
    (fleet.folder / "narrow.py").write_text(
        "from intermission import Chunk, Context, Pipeline, Source, step\n"
        "import sys; sys.path.insert(0, " + repr(str(PIPELINES.parent)) + ")\n"
        "from pipelines import Piece, pieces, wait_at_gate, called\n"
        "@step(version=1, concurrency=1)\n"
        "def alone(ctx: Context, piece: Piece) -> int:\n"
        "    called('alone')\n    wait_at_gate(ctx)\n    return 1\n"
        "narrow = Pipeline('narrow', [pieces, alone])\n"
    )
    fleet.env["INTERMISSION_PIPELINES"] = str(fleet.folder / "narrow.py")
    source = fleet.source()
    (key,) = fleet("submit", "narrow.py:narrow", source).out.split()
    worker = fleet.start("worker", "--drain-s", "0")
    fleet.wait_for_call("alone")
    assert "waits because step alone is at its concurrency: 1 of 1 run" in (
        fleet("why", key, "alone[2]").out
    )
    fleet("limit", "pipeline:narrow", "--per-minute", "1.5")
    codes = {one["code"] for one in waiting(fleet, key)}
    assert codes == {"limit", "rate"}
    assert "pipeline:narrow lets at most 1.5 tasks begin a minute" in fleet("status", key).out
    worker.send_signal(signal.SIGTERM)
    fleet.end(worker)


def test_a_job_whose_time_has_not_come_says_when(fleet: Cli) -> None:
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    key = submit(fleet, "letters", "--not-before", at.isoformat())
    when = at.strftime("%Y-%m-%dT%H:%M:%S")
    assert f"waits because it may not begin before {when}" in fleet("why", key, "pieces").out
    assert f"waits: it may not begin before {when}" in fleet("status", key).out
    assert [one["code"] for one in waiting(fleet, key)] == ["not-before"]


def test_a_label_that_no_worker_offers_is_named(fleet: Cli) -> None:
    key = submit(fleet, "needy")
    assert [one["code"] for one in waiting(fleet, key)] == ["no-worker"]
    assert "no worker is registered or holds a task" in fleet("why", key, "pieces").out
    worker = fleet.start("worker")
    wait_until_idle(fleet, key, "pending", "heavy")
    said = fleet("why", key, "heavy[0]").out
    assert "waits because no known worker offers the label gpu" in said
    assert "intermission worker --can gpu" in said
    assert "waits: no known worker offers the label gpu" in fleet("status", key).out
    (wait,) = waiting(fleet, key)
    assert (wait["code"], wait["name"], wait["steps"]) == ("no-label", "gpu", ["heavy"])
    worker.send_signal(signal.SIGTERM)
    fleet.end(worker)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_was_interrupted_says_that_nobody_works_on_it(
    cli: Cli, how: signal.Signals
) -> None:
    source = cli.source()
    process = cli.begin("gated", source, "--drain-s", "0")
    cli.wait_for_call("waiting", times=2)
    assert waiting(cli, source) == []
    process.send_signal(how)
    cli.end(process)
    for task in ("held[1]", "gather"):
        said = cli("why", source, task).out
        assert "nobody works on the job" in said, task
        assert "Run the same command again" in said
    assert "waits: nobody works on the job" in cli("status", source).out
    assert [one["code"] for one in waiting(cli, source)] == ["interrupted"]
    cli.open_gate()
    cli.run("gated", source)
    assert waiting(cli, source) == []
