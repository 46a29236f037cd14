"""A server, and workers and commands that reach nothing but it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from command_line import PIPELINES, Cli, in_sentence, until

from servers.postgres import Databases, as_url

SECRET = "an-admin-secret-for-tests"
HOME = {"INTERMISSION_SERVER": "", "INTERMISSION_SERVER_KEY": ""}


@pytest.fixture
def server(cli: Cli) -> Iterator[str]:
    """Its address. Commands of `cli` talk to it from here on."""
    cli.env |= {"INTERMISSION_ADMIN_SECRET": SECRET, "INTERMISSION_LEASE_TTL_S": "4"}
    cli.env |= {"INTERMISSION_RENEW_EVERY_S": "1", "INTERMISSION_CACHE_DIR": "cache"}
    process, address = serve(cli)
    cli.env["INTERMISSION_SERVER"] = address
    yield address
    process.kill()


def serve(cli: Cli, port: int = 0, ledger: str = "") -> tuple[subprocess.Popen[str], str]:
    process = cli.start(
        "serve", "--port", port, "--pipeline", f"{PIPELINES}:letters", "--pipeline",
        f"{PIPELINES}:gated", env={**HOME, "INTERMISSION_LEDGER": ledger},
    )  # fmt: skip
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "listening on" in line, line
    return process, line.split()[-1]


def registered(cli: Cli, name: str = "distant") -> dict[str, str]:
    """The environment of a worker that has a key, and no secret."""
    key = cli("register", name).out.strip()
    assert key.startswith("imw_")
    folder = cli.folder / name
    folder.mkdir()
    env = {"INTERMISSION_SERVER_KEY": key, "INTERMISSION_ADMIN_SECRET": ""}
    return env | {"INTERMISSION_CACHE_DIR": str(folder / "cache")}


def states(cli: Cli) -> set[str]:
    return {job["state"] for job in cli("ls", "--json").json["jobs"]}


def stop(cli: Cli, worker: subprocess.Popen[str]) -> None:
    worker.send_signal(signal.SIGTERM)
    ended = cli.end(worker)
    assert ended.code == 0, ended.err


def test_a_file_goes_in_and_a_distant_worker_does_the_work(cli: Cli, server: str) -> None:
    source = cli.source("talk.txt", "abcdef")
    (key,) = cli("submit", f"{PIPELINES}:letters", source).out.split()
    assert cli("submit", f"{PIPELINES}:letters", source).out.split() == [key]
    worker = cli.start("worker", env=registered(cli))
    until(lambda: states(cli) == {"done"})
    stop(cli, worker)
    calls = cli.calls()
    assert calls["pieces"] == calls["whole"] == calls["shout 0"] == 1
    (made,) = (cli.folder / "intermission-data").rglob("shouted/**/whole.txt")
    assert made.read_text() == "AB!CD!EF!"
    assert cli("status", key[:8]).out.splitlines()[1] == "done"
    assert "ran because it never ran before" in cli("why", key[:8], "whole").out
    details = cli("inspect", key[:8], "whole", "--json").json
    assert [file["name"] for file in details["receipt"]["files"]] == ["whole.txt"]
    assert {event["now"] for event in details["history"]} >= {"pending", "leased", "done"}
    told = cli("watch", key[:8], "--after", "0").out
    assert "whole  done" in told
    assert cli("retry", key[:8], "--task", "whole", code=2).err.count("--fresh") == 1
    assert "1 task put back" in cli("retry", key[:8], "--task", "whole", "--fresh").err
    worker = cli.start("worker", env=registered(cli, "second"))
    until(lambda: states(cli) == {"done"})
    assert cli.calls() == {"whole": 1}
    cli("retry", key[:8], "--fresh")
    until(lambda: states(cli) == {"done"})
    stop(cli, worker)
    again = cli.calls()
    assert again["pieces"] == again["whole"] == again["shout 0"] == 1


def test_a_killed_distant_workers_tasks_run_elsewhere(cli: Cli, server: str) -> None:
    cli("submit", f"{PIPELINES}:gated", cli.source())
    env = registered(cli)
    first = cli.start("worker", env=env, start_new_session=True)
    cli.wait_for_call("waiting", times=2)
    os.killpg(first.pid, signal.SIGKILL)
    second = cli.start("worker", env=env)
    cli.wait_for_call("waiting", times=4)
    cli.open_gate()
    until(lambda: states(cli) == {"done"})
    stop(cli, second)
    assert cli.calls()["gather"] == 1


def test_a_stopped_distant_worker_is_fenced(cli: Cli, server: str) -> None:
    cli("submit", f"{PIPELINES}:gated", cli.source())
    first = cli.start("worker", env=registered(cli, "one"), start_new_session=True)
    cli.wait_for_call("waiting", times=2)
    os.killpg(first.pid, signal.SIGSTOP)
    try:
        second = cli.start("worker", env=registered(cli, "two"))
        cli.wait_for_call("waiting", times=4)
        cli.open_gate()
        until(lambda: states(cli) == {"done"})
    finally:
        os.killpg(first.pid, signal.SIGCONT)
    stop(cli, first)
    stop(cli, second)
    assert cli.calls()["gather"] == 1


def test_a_server_that_is_restarted_disturbs_nothing(cli: Cli) -> None:
    cli.env |= {"INTERMISSION_ADMIN_SECRET": SECRET, "INTERMISSION_CACHE_DIR": "cache"}
    process, address = serve(cli)
    cli.env["INTERMISSION_SERVER"] = address
    cli("submit", f"{PIPELINES}:gated", cli.source())
    worker = cli.start("worker", env=registered(cli))
    cli.wait_for_call("waiting", times=2)
    process.kill()
    process.wait()
    cli.open_gate()
    again, _ = serve(cli, int(address.rpartition(":")[2]))
    until(lambda: states(cli) == {"done"})
    stop(cli, worker)
    again.kill()
    calls = cli.calls()
    assert (calls["held 0"], calls["held 2"], calls["gather"]) == (1, 1, 1)


def test_two_servers_over_one_ledger_and_one_of_them_dies(cli: Cli, postgres: Databases) -> None:
    """Its worker keeps what it finished until the server is back; the other's is undisturbed."""
    cli.env |= {"INTERMISSION_ADMIN_SECRET": SECRET, "INTERMISSION_CACHE_DIR": "cache"}
    cli.env["INTERMISSION_LEASE_TTL_S"] = "600"  # what is lost stays lost
    ledger = as_url(postgres.fresh())
    (mortal, first), (lasting, second) = serve(cli, ledger=ledger), serve(cli, ledger=ledger)
    cli.env["INTERMISSION_SERVER"] = second
    (key,) = cli("submit", f"{PIPELINES}:gated", cli.source(text="abcdefgh")).out.split()
    keys = registered(cli, "one"), registered(cli, "two")
    workers = [cli.start("worker", env={**keys[0], "INTERMISSION_SERVER": first})]
    cli.wait_for_call("waiting", times=2)
    workers.append(cli.start("worker", env=keys[1]))
    cli.wait_for_call("waiting", times=3)
    mortal.kill()
    mortal.wait()
    cli.open_gate()
    until(lambda: done_of(cli, key, "held") == 2)  # the one that waited for nothing, too
    again, _ = serve(cli, int(first.rpartition(":")[2]), ledger)
    until(lambda: states(cli) == {"done"})
    for worker in workers:
        stop(cli, worker)
    again.kill()
    lasting.kill()
    calls = cli.calls()
    assert {calls[f"held {at}"] for at in (0, 2, 4, 6)} == {calls["gather"]} == {1}


def done_of(cli: Cli, key: str, step: str) -> int:
    return cli("status", key, "--json").json["steps"][step].get("done", 0)


def test_without_a_key_nothing_is_given(cli: Cli, server: str) -> None:
    nobody = {"INTERMISSION_ADMIN_SECRET": "", "INTERMISSION_SERVER_KEY": ""}
    in_sentence(cli("ls", env=nobody, code=4).err, "refused", "INTERMISSION_ADMIN_SECRET")
    wrong = {"INTERMISSION_ADMIN_SECRET": "something else"}
    in_sentence(cli("register", "x", env=wrong, code=4).err, "refused")
    in_sentence(cli("register", "x", env=nobody, code=2).err, "admin secret")


def test_a_worker_whose_key_is_revoked_ends_and_says_why(cli: Cli, server: str) -> None:
    worker = cli.start("worker", env=registered(cli))
    until(lambda: cli("workers", "--json").json["workers"][0]["state"] in ("idle", "active"))
    cli("workers", "--revoke", cli("workers", "--json").json["workers"][0]["id"])
    ended = cli.end(worker)
    assert ended.code == 4
    assert "revoked" in ended.err


def test_an_administrator_who_is_also_a_worker_gives_orders(cli: Cli, server: str) -> None:
    key = registered(cli)["INTERMISSION_SERVER_KEY"]
    cli("pause", "pipeline:letters", env={"INTERMISSION_SERVER_KEY": key})


def test_a_run_works_in_place_whatever_server_is_named(cli: Cli) -> None:
    source, away = cli.source(), {"INTERMISSION_SERVER": "http://127.0.0.1:9"}
    cli.run("letters", source, env=away)
    assert cli("plan", f"{PIPELINES}:letters", source, "--json", env=away).json["sources"][0][
        "reuse"
    ]
    cli("rebuild", source, env=away)
    assert cli("status", source).out.splitlines()[1] == "done"
