"""Buckets that tell by a queue: what appears becomes a job at once, and only once."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import unquote
from uuid import uuid4

import pytest
from command_line import PIPELINES, Cli, in_sentence, until

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.backends.store.objects import ObjectStore
from intermission.model import JobState
from servers.fault_proxy import FaultProxy, Request, answer
from servers.ministack import ENVIRONMENT, Aws

LETTERS = f"{PIPELINES}:letters"
SELDOM = ("--every-s", "3600")


class Scene:
    """A bucket that tells a queue of its objects, and a fleet on this machine."""

    def __init__(self, cli: Cli, aws: Aws) -> None:
        self.cli, self.aws = cli, aws
        self.name = f"media-{uuid4().hex[:12]}"
        self.bucket = aws.create_bucket(self.name)
        self.place = f"{self.bucket}/in"
        self.queue = aws.url_of(self.name)
        self.dead = aws.create_queue(f"{self.name}-dead")
        self.store = ObjectStore(self.bucket, options={**_options(aws), "endpoint": aws.endpoint})
        cli.env |= aws.environment | {
            "XDG_CACHE_HOME": str(cli.folder / "cache"),
            "INTERMISSION_LEDGER": str(cli.folder / "ledger.sqlite"),
            "INTERMISSION_LOG_LEVEL": "info",
        }

    def create_queue(self) -> None:
        policy = {"deadLetterTargetArn": f"{self.aws.arn_of(self.name)}-dead", "maxReceiveCount": 3}
        how = {"VisibilityTimeout": "1", "RedrivePolicy": json.dumps(policy)}
        self.aws.create_queue(self.name, **how)

    def notify(self, prefix: str = "") -> None:
        self.aws.notify_queue(self.name, self.name, prefix)

    def put(self, key: str, text: bytes = b"abcd") -> None:
        """What has the same content is the same job: give every object its own."""
        self.store.replace(key, text)

    def watch(self, *how: str, **env: str) -> Process:
        args = "watch-folder", LETTERS, self.place, "--queue", self.queue
        return Process(self.cli, self.cli.start(*args, *(how or SELDOM), env=env))

    def serve(self) -> Process:
        table = ["[[watches]]", f'place = "{self.place}"', f'pipeline = "{LETTERS}"']
        table += [f'queue = "{self.queue}"', "every_s = 3600"]
        (self.cli.folder / "intermission.toml").write_text("\n".join(table))
        return Process(self.cli, self.cli.start("serve", "--port", "0"))

    def states(self) -> dict[str, JobState]:
        path = Path(self.cli.env["INTERMISSION_LEDGER"])
        if not path.exists():
            return {}
        with closing(SqliteLedger(path)) as ledger:
            rows = ledger.jobs()
        return {unquote(row.job.source.uri.rpartition("/")[2]): row.state for row in rows}

    def jobs(self) -> int:
        with closing(SqliteLedger(Path(self.cli.env["INTERMISSION_LEDGER"]))) as ledger:
            return len(ledger.jobs())


class Process:
    """A command that runs on, and what it has said so far."""

    def __init__(self, cli: Cli, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.out: list[str] = []
        self.err: list[str] = []
        self._threads = [
            threading.Thread(target=target.extend, args=(stream,), daemon=True)
            for target, stream in ((self.out, process.stdout), (self.err, process.stderr))
        ]
        for thread in self._threads:
            thread.start()

    def says(self, words: str, *, times: int = 1) -> None:
        until(lambda: sum(words in line for line in self.err) >= times or self._has_ended())
        assert self.said(words) >= times, self.err

    def said(self, words: str) -> int:
        return sum(words in line for line in self.err)

    def _has_ended(self) -> bool:
        return self.process.poll() is not None

    def wait(self) -> int:
        code = self.process.wait(60)
        for thread in self._threads:
            thread.join()
        return code

    def stop(self) -> None:
        began_s = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.wait() == 0, self.err
        assert time.monotonic() - began_s < 10, "a long poll keeps nobody waiting"
        assert not any("Traceback" in line for line in self.err), self.err


def _options(aws: Aws) -> dict[str, str]:
    key, secret = ENVIRONMENT.values()
    return {"access_key_id": key, "secret_access_key": secret}


@pytest.fixture
def scene(cli: Cli, aws: Aws) -> Scene:
    return Scene(cli, aws)


@pytest.fixture
def proxy(aws: Aws) -> Iterator[FaultProxy]:
    with FaultProxy(aws.endpoint.removeprefix("http://")).running() as proxy:
        yield proxy


def is_listing(request: Request) -> bool:
    return request.path.endswith("prefix=in%2F")


def test_what_appears_is_submitted_at_once_and_only_once(scene: Scene) -> None:
    scene.put("in/a.txt")  # nobody is told of this one
    scene.create_queue()
    scene.notify()
    command = scene.watch()
    until(lambda: "a.txt" in scene.states())
    # The next listing is an hour away.
    began_s = time.monotonic()
    scene.put("in/b c+d 100%.txt", b"efgh")
    until(lambda: "b c+d 100%.txt" in scene.states())
    assert time.monotonic() - began_s < 30
    scene.cli.start("worker")
    until(lambda: set(scene.states().values()) == {JobState.DONE})
    assert scene.store.read("shouted/in/b c+d 100%/whole.txt") == b"EF!GH!"
    # The same again, something else, and nonsense: only the nonsense stays, until it is dead.
    told = {"s3": {"bucket": {"name": scene.name}, "object": {"key": "in/b+c%2Bd+100%25.txt"}}}
    scene.aws.send(
        scene.queue, json.dumps({"Records": [{"eventName": "ObjectCreated:Put", **told}]})
    )
    scene.aws.send(scene.queue, "hello")
    scene.aws.delete_object(scene.name, "in/a.txt")
    scene.put("elsewhere/e.txt", b"mnop")
    scene.put("in/f.txt", b"ijkl")
    until(lambda: "f.txt" in scene.states())
    until(lambda: scene.aws.count(scene.dead) == 1)
    until(lambda: scene.aws.count(scene.queue) == 0)
    command.stop()
    assert set(scene.states()) == {"a.txt", "b c+d 100%.txt", "f.txt"}
    assert scene.jobs() == 3
    assert len(set(command.out)) == len(command.out) == 3
    assert command.said("a message is left there, for it is not JSON: 'hello'") == 1


@pytest.mark.slow
def test_a_server_goes_on_without_its_queue_and_returns_to_it(scene: Scene) -> None:
    scene.put("in/a.txt")
    server = scene.serve()
    failed = f"queue {scene.queue} failed and is tried again: {scene.queue} does not exist."
    server.says(f"{failed} Create it")
    until(lambda: "a.txt" in scene.states())  # by listing
    scene.create_queue()
    scene.notify()
    server.says(f"queue {scene.queue} works again")
    scene.put("in/b.txt", b"efgh")
    until(lambda: "b.txt" in scene.states())
    until(lambda: scene.aws.count(scene.queue) == 0)
    scene.aws.delete_queue(scene.queue)
    server.says(failed, times=2)
    scene.create_queue()
    server.says(f"queue {scene.queue} works again", times=2)
    scene.put("in/c.txt", b"ijkl")
    until(lambda: "c.txt" in scene.states())
    until(lambda: scene.aws.count(scene.queue) == 0)
    server.stop()
    assert scene.jobs() == 3


def test_killed_between_submitting_and_deleting_it_submits_once(
    scene: Scene, proxy: FaultProxy
) -> None:
    scene.create_queue()
    scene.notify("in/")
    # Listings fail, so that whatever is found is found by the queue.
    proxy.arm(answer(503), times=10**6, matching=is_listing)
    env = {"AWS_ENDPOINT_URL": proxy.url, "INTERMISSION_STORE_PATIENCE_S": "0"}
    scene.put("in/a.txt")
    killed = scene.watch(**env, INTERMISSION_CRASH_AT="after-submit")
    assert killed.wait() == -signal.SIGKILL
    assert killed.out == []
    assert scene.states() == {"a.txt": JobState.PENDING}
    assert scene.aws.count(scene.queue) == 2, "the message, and the one that says hello"
    again = scene.watch(**env)
    until(lambda: scene.aws.count(scene.queue) == 0)
    scene.put("in/b.txt", b"efgh")
    until(lambda: "b.txt" in scene.states())
    until(lambda: scene.aws.count(scene.queue) == 0)
    again.stop()
    assert scene.jobs() == 2
    assert len(again.out) == 1
    assert again.said("a.txt: submitted") == 0
    assert scene.aws.count(scene.dead) == 0


def test_what_cannot_be_meant_is_refused_in_a_sentence(cli: Cli, tmp_path: Path) -> None:
    cli.env["INTERMISSION_LEDGER"] = str(tmp_path / "ledger.sqlite")
    watching = ("watch-folder", LETTERS, "--queue")
    url = "https://sqs.eu-central-1.amazonaws.com/111122223333/media"
    in_sentence(cli(*watching, url, "in", code=2).err, "in, which is not in S3")
    in_sentence(cli(*watching, "media", "s3://b/in", code=2).err, "'media'", "https://sqs.REGION")
    both = cli(*watching, url, "s3://b/in", "--cron", "0 2 * * *", code=2)
    in_sentence(both.err, "both a queue", "Give one of them")
