"""A run in a bucket that meets one fault, at one request after the other, and is run again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from intermission.backends.store.objects import ObjectStore
from servers.fault_proxy import CUT_BODY, LOST_REPLY, RESET, FaultProxy, answer
from servers.seaweed import S3Server

PIPELINE = """
from intermission import Chunk, Context, File, Pipeline, Source, step
import os

class Letter(Chunk):
    at: int

def called(what):
    with open(os.environ["CALLS"], "a") as calls:
        calls.write(what + "\\n")

@step(version=1)
def letters(source: Source) -> list[Letter]:
    called("letters")
    return [Letter(at=n) for n in range(len(source.path.read_text()))]

@step(version=1, publish="letters/{index}.txt")
def loud(ctx: Context, source: Source, letter: Letter) -> File:
    called(f"loud {letter.at}")
    path = ctx.out("loud.txt")
    path.write_text(source.path.read_text()[letter.at].upper())
    return path

@step(version=1)
def whole(ctx: Context, loud: list[File]) -> File:
    called("whole")
    path = ctx.out("whole.txt")
    path.write_text("".join(one.read_text() for one in loud))
    return path

shout = Pipeline("shout", [letters, loud, whole])
"""
FAULTS = {
    "lost reply": LOST_REPLY,
    "reset": RESET,
    "cut body": CUT_BODY,
    "500": answer(500, "InternalError"),
    "503": answer(503, "SlowDown"),
    "409": answer(409, "OperationAborted"),
}
SHARDS = 4
STRIDE = 3
"""Every third request meets a fault; which one, goes round."""


class Machine:
    """One machine and its bucket, seen through the proxy."""

    def __init__(self, folder: Path, s3: S3Server, proxy: FaultProxy) -> None:
        folder.mkdir()
        self.folder = folder
        self.bucket = f"s3://faults-{os.urandom(5).hex()}"
        self.store = ObjectStore(self.bucket, options=s3.options)
        self.store.create("abc.txt", b"abc")
        (folder / "shout.py").write_text(PIPELINE)
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("INTERMISSION_")},
            **s3.environment,
            "AWS_ENDPOINT_URL": proxy.url,
            "CALLS": str(folder / "calls"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "INTERMISSION_SLOTS": "1",
            "INTERMISSION_RETRY_DELAYS_S": "0",
        }

    def run(self) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "intermission", "run", "shout.py:shout"]
        return subprocess.run(
            [*command, f"{self.bucket}/abc.txt"],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )

    def finished(self) -> int:
        return sum(1 for _ in self.store.list("checkpoints/abc.txt/receipts/"))

    def calls(self) -> Counter[str]:
        path = self.folder / "calls"
        return Counter(path.read_text().splitlines()) if path.exists() else Counter[str]()

    def outputs(self) -> dict[str, bytes]:
        return {stat.key: self.store.read(stat.key) for stat in self.store.list("shout/")}


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_fault_at_every_few_requests(
    shard: int, s3: S3Server, fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    clean = Machine(tmp_path / "clean", s3, fault_proxy)
    fault_proxy.arm()
    assert clean.run().returncode == 0
    requests = len(fault_proxy.requests)
    wanted = clean.outputs()
    assert len(wanted) == 4
    assert requests > 50

    kinds = list(FAULTS.items())
    for turn, nth in enumerate(range(shard * STRIDE, requests, SHARDS * STRIDE)):
        name, fault = kinds[(turn * SHARDS + shard) % len(kinds)]
        one = Machine(tmp_path / f"{nth}", s3, fault_proxy)
        fault_proxy.arm(fault, nth=nth)
        check(one, f"{name} at request {nth}", wanted)
        assert len(fault_proxy.requests) > nth, "the fault came too late for the run"
        fault_proxy.disarm()


def check(one: Machine, what: str, wanted: dict[str, bytes]) -> None:
    ended = one.run()
    assert ended.returncode in (0, 75), f"{what}: {ended.stderr}"
    assert "Traceback" not in ended.stderr, what
    if ended.returncode != 0:
        calls, done = one.calls(), one.finished()
        ended = one.run()
        assert ended.returncode == 0, f"{what}, again: {ended.stderr}"
        assert one.calls().total() <= calls.total() + 5 - done, what
    assert one.outputs() == wanted, what
    # No answer got lost so thoroughly that finished work was done again.
    assert one.calls() == {"letters": 1, "loud 0": 1, "loud 1": 1, "loud 2": 1, "whole": 1}, what
