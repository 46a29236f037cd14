"""Sources in a bucket: the same command, the same outputs, on one machine or on several."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import PIPELINES, Cli, in_sentence, until

import samples
from intermission.backends.store.objects import ObjectStore
from servers.fault_proxy import FaultProxy, answer
from servers.seaweed import S3Server


class Bucket:
    """A bucket of its own, as the command and as the test see it."""

    def __init__(self, server: S3Server, name: str) -> None:
        self.url = f"{server.root.rsplit('/', 1)[0]}/{name}"
        self.store = ObjectStore(self.url, options=server.options)
        self.env = server.environment

    def put(self, key: str, data: bytes | Path) -> str:
        self.store.replace(key, data)
        return f"{self.url}/{key}"

    def keys(self, prefix: str = "") -> set[str]:
        return {stat.key for stat in self.store.list(prefix)}

    def lock(self, key: str) -> dict[str, Any]:
        return json.loads(self.store.read(f"checkpoints/{key}/lock.json"))


@pytest.fixture
def bucket(s3: S3Server, request: pytest.FixtureRequest) -> Bucket:
    name = request.node.name.replace("_", "-").replace("[", "-").rstrip("]")
    return Bucket(s3, name[:50].rstrip("-").lower())


Machine = Callable[[str], Cli]


@pytest.fixture
def machine(tmp_path: Path, bucket: Bucket) -> Iterator[Machine]:
    """Machines that share nothing but the bucket."""
    made: list[Cli] = []

    def make(name: str) -> Cli:
        (tmp_path / name).mkdir()
        cli = Cli(tmp_path / name)
        cli.env |= bucket.env | {"XDG_CACHE_HOME": str(tmp_path / name / "cache")}
        cli.env["CALLS"], cli.env["GATE"] = str(tmp_path / "calls"), str(tmp_path / "gate")
        made.append(cli)
        return cli

    yield make
    for cli in made:
        cli.kill_all()


LETTERS = f"{PIPELINES}:letters"


def test_a_source_in_a_bucket(machine: Machine, bucket: Bucket) -> None:
    cli = machine("one")
    source = bucket.put("texts/sub/a.txt", b"abcdef")
    ended = cli("run", LETTERS, source)
    assert "reused 0 of 5 tasks, ran 5" in ended.err
    (printed,) = ended.out.split()
    assert printed.startswith(f"{bucket.url}/shouted/texts/sub/a/")
    assert bucket.lock("texts/sub/a.txt")["state"] == "free"
    # Another machine knows all of it.
    other = machine("two")
    assert "reused 5 of 5 tasks, ran 0" in other("run", LETTERS, source).err
    assert other("status", source, "--json").json["state"] == "done"
    assert other("ls", f"{bucket.url}/texts", "--json").json["jobs"][0]["source"] == source
    assert "would run 0 tasks" in other("plan", LETTERS, source).out
    assert other("why", source, "shout[1]").out
    watched = other("watch", source, "--after", "0", "--jsonl").events
    assert watched[-1]["state"] == "done"


def test_a_prefix_stands_for_what_is_below_it(machine: Machine, bucket: Bucket) -> None:
    for name in ("a.txt", "sub/b.txt", "sub/a.txt", "notes.md"):
        bucket.put(f"texts/{name}", b"abcd")
    cli = machine("one")
    run = ("run", LETTERS, f"{bucket.url}/", "--include", "*.txt", "--json")
    assert len(cli(*run).json["sources"]) == 3
    again = cli(*run).json  # outputs and checkpoints are no sources
    assert len(again["sources"]) == 3
    assert again["executed"] == 0
    folders = {key.rsplit("/", 1)[0] for key in bucket.keys("shouted/")}
    assert folders == {"shouted/texts/a", "shouted/texts/sub/b", "shouted/texts/sub/a"}


def test_killed_here_and_continued_elsewhere(machine: Machine, bucket: Bucket) -> None:
    source = bucket.put("a.txt", b"abcdef")
    here, there = machine("here"), machine("there")
    process = here.begin("gated", source, "--drain-s", "0")
    until(lambda: Path(here.env["CALLS"]).exists())
    until(lambda: Path(here.env["CALLS"]).read_text().count("waiting") == 2)
    process.send_signal(signal.SIGTERM)  # the lock is freed, so nobody has to wait for it
    assert here.end(process).code == 75
    Path(here.env["CALLS"]).unlink()
    Path(here.env["GATE"]).touch()
    ended = there.run("gated", source)
    assert "reused 2 of 5 tasks, ran 3" in ended.err
    assert bucket.lock("a.txt")["generation"] == 2


def test_a_changed_source_is_another_job(machine: Machine, bucket: Bucket) -> None:
    cli = machine("one")
    source = bucket.put("a.txt", b"abcdef")
    cli("run", LETTERS, source)
    bucket.put("a.txt", b"ABCDEF")
    assert cli("run", LETTERS, source, "--json").json["reused"] == 0


@pytest.mark.parametrize("where", ["bucket", "disk"])
def test_a_source_replaced_during_the_run_fails_it(
    where: str, machine: Machine, bucket: Bucket
) -> None:
    """In a bucket as on a disk: no transcript of the old words under the new file's name."""
    cli = machine("one")
    local = cli.folder / "a.txt"
    local.write_bytes(b"abcdef")
    source = bucket.put("a.txt", b"abcdef") if where == "bucket" else str(local)
    process = cli.begin("gated", source)
    until(lambda: Path(cli.env["CALLS"]).exists())
    until(lambda: Path(cli.env["CALLS"]).read_text().count("waiting") == 2)
    local.write_bytes(b"ABCDEF")
    bucket.put("a.txt", b"ABCDEF")
    Path(cli.env["GATE"]).touch()
    ended = cli.end(process)
    assert ended.code == 1
    assert "this job was planned for. Run the same command again" in ended.err
    cli.run("gated", source)


def test_a_bucket_that_is_not_there_or_denies_us(machine: Machine, bucket: Bucket) -> None:
    cli = machine("one")
    source = bucket.put("a.txt", b"abcdef")
    in_sentence(cli("run", LETTERS, f"{bucket.url}/none.txt", code=1).err, "has no object")
    wrong = {"AWS_SECRET_ACCESS_KEY": "wrong"}
    in_sentence(cli("run", LETTERS, source, code=4, env=wrong).err, "denied")
    in_sentence(cli("run", LETTERS, "ftp://host/a.txt", code=2).err, "s3://bucket/prefix")


def test_a_talk_in_a_bucket(machine: Machine, bucket: Bucket, tmp_path: Path) -> None:
    source = bucket.put("videos/talk.mp4", samples.talk())
    cli = machine("one")
    cli("run", "transcribe", source, "--chunk-seconds", "30")
    local = machine("local")
    talk = Path(shutil.copy(samples.talk(), local.folder / "talk.mp4"))
    local("run", "transcribe", talk, "--chunk-seconds", "30")
    for name in ("talk.srt", "talk.txt", "chunks/chunk_0000.txt"):
        beside = local.folder / "transcripts" / "talk" / name
        assert bucket.store.read(f"transcripts/videos/talk/{name}") == beside.read_bytes()
    # What was fetched to work on it is gone again.
    cached = [path for path in Path(cli.env["XDG_CACHE_HOME"]).rglob("*") if path.is_file()]
    assert not [path for path in cached if path.suffix in (".mp4", ".wav")]


SHORT = {"INTERMISSION_LEASE_TTL_S": "4", "INTERMISSION_RENEW_EVERY_S": "1"}


def test_machines_share_the_files_of_a_prefix(machine: Machine, bucket: Bucket) -> None:
    for n in range(6):
        bucket.put(f"texts/{n}.txt", b"abcdef")
    Path(machine("idle").env["GATE"]).touch()
    clis = [machine(name) for name in ("one", "two", "three")]
    begun = [cli.begin("gated", f"{bucket.url}/texts/", "--json", env=SHORT) for cli in clis]
    documents = [cli.end(process).json for cli, process in zip(clis, begun, strict=True)]
    assert [document["exit_code"] for document in documents] == [0, 0, 0]
    assert sum(document["executed"] for document in documents) == 6 * 5
    for document in documents:
        assert {source["state"] for source in document["sources"]} == {"done"}


def test_a_dead_machines_file_is_taken_over(machine: Machine, bucket: Bucket) -> None:
    source = bucket.put("a.txt", b"abcdef")
    dead, heir = machine("dead"), machine("heir")
    process = dead.begin("gated", source, env=SHORT)
    until(lambda: Path(dead.env["CALLS"]).exists())
    until(lambda: Path(dead.env["CALLS"]).read_text().count("waiting") == 2)
    waiting = heir.begin("gated", source, env=SHORT)
    process.kill()
    Path(dead.env["GATE"]).touch()
    ended = heir.end(waiting)
    assert ended.code == 0, ended.err
    assert "is being worked on by" in ended.err
    assert re.search(r"reused [234] of 5 tasks", ended.err)
    assert bucket.lock("a.txt")["generation"] == 2


def test_a_bucket_that_stops_answering_interrupts_with_progress_saved(
    machine: Machine, bucket: Bucket, s3: S3Server, fault_proxy: FaultProxy
) -> None:
    cli = machine("one")
    source = bucket.put("a.txt", b"abcdef")
    through = {
        "AWS_ENDPOINT_URL": fault_proxy.url,
        "INTERMISSION_STORE_PATIENCE_S": "1",
        **SHORT,
    }
    process = cli.begin("gated", source, env=through)
    until(lambda: Path(cli.env["CALLS"]).exists())
    until(lambda: Path(cli.env["CALLS"]).read_text().count("waiting") == 2)
    fault_proxy.arm(answer(503, "SlowDown"), times=10**9)
    Path(cli.env["GATE"]).touch()
    ended = cli.end(process)
    fault_proxy.disarm()
    assert ended.code == 75, ended.err
    assert "Traceback" not in ended.err
    assert cli.run("gated", source, env=through, code=0)


def test_outputs_may_go_elsewhere(machine: Machine, bucket: Bucket) -> None:
    cli = machine("one")
    first, second = bucket.put("x/a.txt", b"abcd"), bucket.put("y/a.txt", b"efgh")
    cli("run", LETTERS, first, second, "--output-dir", cli.folder / "out")
    assert {path.parent.name for path in cli.folder.glob("out/*/whole.txt")} == {"a", "a.txt"}
    local = cli.source("b.txt", "ijkl")
    ended = cli("run", LETTERS, local, first, "--output-dir", f"{bucket.url}/made")
    assert sorted(ended.out.split()) == [
        f"{bucket.url}/made/a/whole.txt",
        f"{bucket.url}/made/b/whole.txt",
    ]


def test_what_is_changed_by_hand_is_changed_in_the_bucket(machine: Machine, bucket: Bucket) -> None:
    one, two = machine("one"), machine("two")
    source = bucket.put("a.txt", b"abcdef")
    one("run", LETTERS, source)
    bucket.store.delete("checkpoints/a.txt/ledger.sqlite")
    assert "5 of 5 known tasks are finished" in two("rebuild", source).out
    assert "reused 5 of 5 tasks, ran 0" in one("run", LETTERS, source).err
    assert two("retry", source, "--task", "shout[1]", "--fresh").err.count("put back") == 1
    assert one("status", source, "--json").json["state"] == "done"
    assert bucket.keys("checkpoints/a.txt/quarantine/")
    swept = two("gc", bucket.url, "--grace-s", "60", "--json").json["sources"]
    assert [one["in_use"] for one in swept] == [False]


def test_gc_finds_what_a_shared_ledger_works_on(machine: Machine, bucket: Bucket) -> None:
    cli = machine("one")
    shared = {"INTERMISSION_LEDGER": str(cli.folder / "shared" / "ledger.sqlite")}
    short = {"INTERMISSION_LEASE_TTL_S": "0.02", "INTERMISSION_RENEW_EVERY_S": "0.01"}
    source = bucket.put("texts/a.txt", b"abcdef")
    bucket.put("other/b.txt", b"abcdef")
    cli("submit", LETTERS, source, env=shared)
    stray = "checkpoints/texts/a.txt/artifacts/whole/stray/00001-x/left.txt"
    bucket.put(stray, b"left behind")
    alone = cli("gc", f"{bucket.url}/texts/", code=3)
    assert alone.out == f"{source}: its jobs are in a shared ledger, name it with --ledger\n"
    assert "1 waiting for the next pass" in cli("gc", bucket.url, env=shared).out
    assert cli("gc", f"{bucket.url}/other/", env=shared).out == ""
    swept = cli("gc", f"{bucket.url}/texts/", "--grace-s", 0.02, env=shared | short)
    assert "removed 1 file (11 B)" in swept.out
    assert bucket.keys(stray) == set()


def test_a_fleet_worker_keeps_its_disk_within_the_bound(machine: Machine, bucket: Bucket) -> None:
    cli = machine("one")
    cli.env["INTERMISSION_LEDGER"] = str(cli.folder / "shared" / "ledger.sqlite")
    cli.env["INTERMISSION_SCRATCH_MAX_BYTES"] = "500KB"
    for n in range(6):
        source = bucket.put(f"texts/{n}.txt", f"{n}".encode() * 200_000)
        cli("submit", LETTERS, source, "--size", "100000")
    worker = cli.start("worker")
    until(lambda: {job["state"] for job in cli("ls", "--json").json["jobs"]} == {"done"})
    worker.send_signal(signal.SIGTERM)
    assert cli.end(worker).code == 0
    left = [path for path in (cli.folder / "cache").rglob("*") if path.is_file()]
    assert 200_000 <= sum(path.stat().st_size for path in left) <= 500_000
