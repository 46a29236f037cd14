"""Small pipelines for the command line to run. Every execution of a step leaves a line in CALLS."""

from __future__ import annotations

import errno
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

from intermission import Chunk, Context, File, Groups, Pipeline, Source, TaskError, step

GATE = Path(os.environ.get("GATE", "gate"))


def called(what: str) -> None:
    fd = os.open(os.environ["CALLS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(fd, f"{what}\n".encode())
    os.close(fd)


def wait_at_gate(ctx: Context) -> None:
    """Stay in the middle of a task until the test opens the gate, or nobody wants the result."""
    while not GATE.exists() and not ctx.cancelled:
        time.sleep(0.02)
    if ctx.cancelled:
        called("heard of the cancellation")
        raise TaskError("cancelled")


class Piece(Chunk):
    start: int
    stop: int


@step(version=1)
def pieces(source: Source, size: int = 2) -> list[Piece]:
    called("pieces")
    length = len(source.path.read_text())
    found = [Piece(start=n, stop=min(n + size, length)) for n in range(0, length, size)]
    return found[::-1] if os.environ.get("SHUFFLED") else found


@step(version=1)
def shout(ctx: Context, source: Source, piece: Piece, mark: str = "!") -> str:
    called(f"shout {piece.start}")
    ctx.log.warning("shouting %s", piece.start)
    return source.path.read_text()[piece.start : piece.stop].upper() + mark


@step(version=1)
def whole(ctx: Context, shout: list[str]) -> File:
    called("whole")
    path = ctx.out("whole.txt")
    path.write_text("".join(shout))
    return path


@step(version=1, groups=Groups(by="stop", size="start"))
def counted(piece: Piece) -> int:
    return piece.stop


grouped = Pipeline("grouped", [pieces, counted])
letters = Pipeline("letters", [pieces, shout, whole], output="shouted")


@step(version=1)
def held(ctx: Context, source: Source, piece: Piece) -> str:
    called(f"held {piece.start}")
    if piece.start > 0:
        called("waiting")
        wait_at_gate(ctx)
    return source.path.read_text()[piece.start : piece.stop]


@step(version=1)
def gather(ctx: Context, held: list[str]) -> File:
    called("gather")
    path = ctx.out("gathered.txt")
    path.write_text("".join(held))
    return path


gated = Pipeline("gated", [pieces, held, gather])


@step(version=1)
def uneven(ctx: Context, source: Source, piece: Piece) -> None:
    """Short, but for a piece with an X."""
    called(f"uneven {piece.start}")
    if "X" in source.path.read_text()[piece.start : piece.stop]:
        wait_at_gate(ctx)


jammed = Pipeline("jammed", [pieces, uneven])


@step(version=1)
def dawdle(source: Source, piece: Piece) -> None:
    """Short, but for a piece with an X; its process is slow to go on after it has answered."""
    called(f"dawdle {piece.start}")
    if "X" in source.path.read_text()[piece.start : piece.stop]:
        send = Connection.send

        def send_and_rest(connection: Connection, message: object) -> None:
            send(connection, message)
            time.sleep(0.5)

        Connection.send = send_and_rest  # type: ignore[method-assign]
        time.sleep(2)


dawdling = Pipeline("dawdling", [pieces, dawdle])


@step(version=1, attempts=2)
def risky(source: Source, piece: Piece) -> str:
    called(f"risky {piece.start}")
    text = source.path.read_text()[piece.start : piece.stop]
    if "X" in text and not GATE.exists():
        raise ValueError(f"found an X at {piece.start}")
    return text


@step(version=1)
def sums(ctx: Context, risky: list[str]) -> File:
    path = ctx.out("sums.txt")
    path.write_text("".join(risky))
    return path


failing = Pipeline("failing", [pieces, risky, sums])


@step(version=1, attempts=1)
def mixed(ctx: Context, piece: Piece) -> str:
    called(f"mixed {piece.start}")
    if piece.start == 0 and not GATE.exists():
        raise ValueError("the first piece fails until the gate is open")
    if piece.start > 0:
        wait_at_gate(ctx)
    return str(piece.start)


interrupted = Pipeline("interrupted", [pieces, mixed])


@step(version=1, attempts=2)
def deadly(source: Source, piece: Piece) -> str:
    called(f"deadly {piece.start}")
    if piece.start == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return source.path.read_text()[piece.start : piece.stop]


poison = Pipeline("poison", [pieces, deadly])


@step(version=1, attempts=1, on_error="skip")
def maybe(piece: Piece) -> int:
    if piece.start == 0:
        raise ValueError("no luck")
    return piece.start


@step(version=1)
def kept(ctx: Context, maybe: list[int | None]) -> File:
    path = ctx.out("kept.txt")
    path.write_text(repr(maybe))
    return path


gappy = Pipeline("gappy", [pieces, maybe, kept])


@step(version=1, durable=False)
def quick(piece: Piece) -> int:
    called(f"quick {piece.start}")
    return piece.stop - piece.start


@step(version=1, durable=False)
def length(quick: list[int]) -> int:
    called("length")
    return sum(quick)


feather = Pipeline("feather", [pieces, quick, length])


@step(version=1, needs="gpu")
def heavy(piece: Piece) -> int:
    called(f"heavy {piece.start}")
    return piece.start


needy = Pipeline("needy", [pieces, heavy])


@step(version=1, attempts=1, timeout_s=0.3)
def endless(ctx: Context, source: Source) -> str:
    called("endless")
    wait_at_gate(ctx)
    return source.name


patient = Pipeline("patient", [endless])


@step(version=1)
def twice(source: Source) -> list[Piece]:
    return [Piece(start=0, stop=1), Piece(start=0, stop=1)]


@step(version=1)
def taken(piece: Piece) -> int:
    return piece.start


repeated = Pipeline("repeated", [twice, taken])


@step(version=1)
def outside(ctx: Context, source: Source) -> int:
    called("outside")
    ctx.defer(f"token-{source.name}")
    return 0


@step(version=1)
def answer(ctx: Context, outside: int) -> File:
    path = ctx.out("answer.txt")
    path.write_text(str(outside))
    return path


deferred = Pipeline("deferred", [outside, answer])


@step(version=1)
def rendered(ctx: Context, source: Source) -> File:
    called("rendered")
    ctx.defer(f"render/{source.name}")
    return ctx.out("never")


@step(version=1)
def measured(ctx: Context, rendered: File) -> File:
    path = ctx.out("measured.txt")
    path.write_text(f"{rendered.name} has {rendered.stat().st_size} bytes")
    return path


rendering = Pipeline("rendering", [rendered, measured])


@step(version=1, attempts=1)
def bulky(ctx: Context, piece: Piece, size_bytes: int = 1_000_000) -> File:
    called(f"bulky {piece.start}")
    path = ctx.out("bulk.bin")
    path.write_bytes(os.urandom(size_bytes))
    return path


bulk = Pipeline("bulk", [pieces, bulky])


@step(version=1)
def climb(ctx: Context, source: Source) -> int:
    ctx.progress(0.25)
    wait_at_gate(ctx)
    return len(source.path.read_text())


climbing = Pipeline("climbing", [climb])


@step(version=1)
def unreadable_once(source: Source) -> None:
    """A step whose machine has a failing disk, whichever machine that is."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


unreadable = Pipeline("unreadable", [unreadable_once])
