"""The pipelines the crash tests interrupt: deterministic outputs, and a journal of executions.

Every execution appends a line to the journal before it does anything else, so that a test can
tell what was run again. Paths come from the environment, because a parameter would become part
of a task's identity.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from pathlib import Path

from intermission import Chunk, Context, File, Pipeline, Source, step

JOURNAL = "CRASH_JOURNAL"
HOLD = "CRASH_HOLD"
"""A folder: a `cut` whose number is a file's name there goes on when that file is removed."""
TIRELESS = 100_000
"""Killed slots count as attempts, lost workers apart: these tests kill more than anybody else."""


class Piece(Chunk):
    no: int


def executed(step_name: str, ctx: Context) -> None:
    """Tell the journal; one line in one write, so that lines of many slots never mix."""
    with Path(os.environ[JOURNAL]).open("ab", buffering=0) as journal:
        journal.write(f"{step_name}/{ctx.idempotency_key} {os.getpid()}\n".encode())


@step(version=1, attempts=TIRELESS, retry_delays_s=(0.0,))
def pieces(ctx: Context, source: Source, count: int = 29) -> list[Piece]:
    executed("pieces", ctx)
    return [Piece(no=no) for no in range(count)]


@step(version=1, attempts=TIRELESS, retry_delays_s=(0.0,))
def cut(ctx: Context, source: Source, piece: Piece, nap_ms: int = 0, litter: bool = False) -> File:
    """A file made of the source and the piece's number."""
    executed("cut", ctx)
    children = _litter(piece.no) if litter else []
    hold_while(piece.no)
    seed = source.path.read_bytes() + str(piece.no).encode()
    out = ctx.out("piece.bin")
    block = hashlib.sha256(seed).digest()
    out.write_bytes(block * 40)
    time.sleep(nap_ms * (1 + piece.no % 4) / 1000)
    for child in children:
        child.kill()
        child.wait()
    return out


@step(version=1, attempts=TIRELESS, retry_delays_s=(0.0,))
def weigh(ctx: Context, cut: File, piece: Piece, nap_ms: int = 0) -> str:
    executed("weigh", ctx)
    time.sleep(nap_ms / 1000)
    return hashlib.sha256(cut.read_bytes()).hexdigest()


@step(version=1, attempts=TIRELESS, retry_delays_s=(0.0,))
def join(ctx: Context, cut: list[File], weigh: list[str]) -> File:
    executed("join", ctx)
    out = ctx.out("joined.bin")
    with out.open("wb") as file:
        for path, weight in zip(cut, weigh, strict=True):
            file.write(path.read_bytes())
            file.write(f"\n{weight}\n".encode())
    return out


crash = Pipeline("crash", [pieces, cut, weigh, join])


@step(version=1, attempts=4, retry_delays_s=(0.0,))
def only(ctx: Context, source: Source, blocks: int = 40) -> File:
    """A task whose every system call can be told apart: one small file of the source."""
    executed("only", ctx)
    out = ctx.out("joined.bin")
    out.write_bytes(hashlib.sha256(source.path.read_bytes()).digest() * blocks)
    return out


solo = Pipeline("solo", [only])


def small(name: str, attempts: int) -> Pipeline:
    """A plan, a map and a join that may be tried so many times, so that a job can fail."""

    @step(version=1, attempts=attempts, retry_delays_s=(0.0,))
    def plan(ctx: Context, source: Source, count: int = 3) -> list[Piece]:
        executed("plan", ctx)
        return [Piece(no=no) for no in range(count)]

    @step(version=1, attempts=attempts, retry_delays_s=(0.0,))
    def part(ctx: Context, source: Source, piece: Piece, nap_ms: int = 0) -> File:
        executed("part", ctx)
        hold_while(piece.no)
        time.sleep(nap_ms / 1000)
        out = ctx.out("piece.bin")
        out.write_bytes(hashlib.sha256(source.path.read_bytes() + str(piece.no).encode()).digest())
        return out

    @step(version=1, attempts=attempts, retry_delays_s=(0.0,))
    def whole(ctx: Context, part: list[File]) -> File:
        executed("whole", ctx)
        out = ctx.out("joined.bin")
        out.write_bytes(b"".join(path.read_bytes() for path in part))
        return out

    return Pipeline(name, [plan, part, whole])


thrice, once = small("thrice", 3), small("once", 1)


@step(version=1)
def mess(ctx: Context, source: Source, stays: bool = True) -> int:
    """Starts children that hide in every way there is, and goes on or leaves them behind."""
    executed("mess", ctx)
    subprocess.Popen(["sleep", "1000"])
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    subprocess.Popen(["sh", "-c", "sleep 1000 & sleep 1000; :"], start_new_session=True)
    subprocess.Popen(["sh", "-c", "setsid sh -c 'setsid sleep 1000; :' &"]).wait()
    while stays:
        time.sleep(1000)
    return 0


littering = Pipeline("littering", [mess])
SLEEPERS = 5
"""How many processes called sleep a mess has."""


def _litter(no: int) -> list[subprocess.Popen[bytes]]:
    """Some tasks have a child process while they work, and some have one in its own session."""
    if no % 4 > 1:
        return []
    return [subprocess.Popen(["sleep", "1000"], start_new_session=no % 4 == 1)]


def hold_while(no: int) -> None:
    """Wait until the test lets this piece go on."""
    folder = os.environ.get(HOLD)
    while folder and Path(folder, str(no)).exists():
        time.sleep(0.005)
