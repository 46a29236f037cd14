"""Watched places: files that appear become jobs, by a server or a command, each once."""

from __future__ import annotations

import signal
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from command_line import PIPELINES, Cli, in_sentence, until

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.backends.store.objects import ObjectStore
from intermission.model import JobState
from servers.seaweed import S3Server

LETTERS = f"{PIPELINES}:letters"


@pytest.fixture
def fleet(cli: Cli) -> Cli:
    ledger = cli.folder / "shared" / "ledger.sqlite"
    ledger.parent.mkdir()
    (cli.folder / "in").mkdir()
    cli.env |= {
        "INTERMISSION_LEDGER": str(ledger),
        "INTERMISSION_LEASE_TTL_S": "4",
        "INTERMISSION_RENEW_EVERY_S": "1",
        "INTERMISSION_LOG_LEVEL": "info",
    }
    return cli


def watch(cli: Cli, place: str, *lines: str) -> None:
    """Have servers watch a place from now on."""
    table = ["[[watches]]", f'place = "{place}"', f'pipeline = "{LETTERS}"', *lines]
    (cli.folder / "intermission.toml").write_text("\n".join(table))


def states(cli: Cli) -> dict[str, JobState]:
    with closing(SqliteLedger(Path(cli.env["INTERMISSION_LEDGER"]))) as ledger:
        return {row.job.source.uri.rpartition("/")[2]: row.state for row in ledger.jobs()}


def serve(cli: Cli) -> subprocess.Popen[str]:
    process = cli.start("serve", "--port", "0")
    assert process.stderr is not None
    assert any(line.startswith("listening on ") for line in process.stderr)
    return process


def stop(cli: Cli, process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGTERM)
    ended = cli.end(process)
    assert ended.code == 0, ended.err
    return ended.err


def test_a_server_submits_what_appears_in_a_folder(fleet: Cli) -> None:
    watch(fleet, "in", "every_s = 0.3", 'params = { mark = "?" }', 'include = ["*.txt"]')
    server = serve(fleet)
    fleet.source("in/a.txt", "abcd")
    fleet.source("in/notes.md", "efgh")
    until(lambda: "a.txt" in states(fleet))
    fleet.start("worker")
    until(lambda: states(fleet) == {"a.txt": JobState.DONE})
    assert (fleet.folder / "in/shouted/a/whole.txt").read_text() == "AB?CD?"
    # What cannot be watched for a while is told once, and then it goes on.
    (fleet.folder / "in").rename(fleet.folder / "away")
    assert server.stderr is not None
    assert any("watch of in failed" in line for line in server.stderr)
    (fleet.folder / "away").rename(fleet.folder / "in")
    fleet.source("in/b.txt", "ijkl")
    until(lambda: states(fleet).get("b.txt") is JobState.DONE)
    said = stop(fleet, server)
    assert "watch of in works again" in said
    assert said.count("b.txt: submitted as job") == 1


def test_killed_at_any_instant_it_submits_once(fleet: Cli) -> None:
    fleet.source("in/a.txt", "abcd")
    watch(fleet, "in", "every_s = 60")
    serve(fleet).kill()  # between the look that saw the file and the one that takes it
    assert states(fleet) == {}
    watch(fleet, "in", "every_s = 0.3")
    submitting = fleet.start("serve", "--port", "0", env={"INTERMISSION_CRASH_AT": "after-submit"})
    assert fleet.end(submitting).code == -signal.SIGKILL
    assert states(fleet) == {"a.txt": JobState.PENDING}
    again = serve(fleet)
    fleet.source("in/b.txt", "efgh")
    until(lambda: "b.txt" in states(fleet))
    said = stop(fleet, again)
    assert "b.txt: submitted" in said
    assert "a.txt: submitted" not in said
    assert len(states(fleet)) == 2


def test_a_bucket_is_watched_by_a_command_and_by_a_server(fleet: Cli, s3: S3Server) -> None:
    url = f"{s3.root.rsplit('/', 1)[0]}/watched-by-two"
    store = ObjectStore(url, options=s3.options)
    fleet.env |= s3.environment | {"XDG_CACHE_HOME": str(fleet.folder / "cache")}
    store.replace("in/a.txt", b"abcd")
    # An hour late is not too late, so what is due every minute is due at the start.
    by_hand = ("watch-folder", LETTERS, f"{url}/in", "--cron", "* * * * *", "--timezone", "UTC")
    command = fleet.start(*by_hand)
    until(lambda: "a.txt" in states(fleet))
    assert f"{url}/in/a.txt: submitted" in stop(fleet, command)
    watch(fleet, f"{url}/in/", "every_s = 0.3")
    server = serve(fleet)
    store.replace("in/b.txt", b"efgh")
    until(lambda: "b.txt" in states(fleet))
    fleet.start("worker")
    until(lambda: set(states(fleet).values()) == {JobState.DONE})
    assert store.read("shouted/in/b/whole.txt") == b"EF!GH!"
    said = stop(fleet, server)
    assert said.count("submitted as job") == 1, "outputs and known objects are left alone"
    assert len(states(fleet)) == 2


def test_what_cannot_work_is_refused_in_a_sentence(fleet: Cli) -> None:
    watch(fleet, "in", 'params = { colour = "red" }')
    refused = fleet("serve", "--port", "0", code=2)
    in_sentence(refused.err, "watches, number 1", "colour", "It has: mark, size")
    (fleet.folder / "intermission.toml").unlink()
    looking = ("watch-folder", LETTERS, "in")
    in_sentence(fleet(*looking, "--cron", "at night", code=2).err, "'at night'", "2 fields")
    both = fleet(*looking, "--cron", "0 2 * * *", "--every-s", "5", code=2)
    in_sentence(both.err, "cron", "Give one of them")
