"""Files that travel: each frame is rendered to a file, and an album holds all of them."""

from __future__ import annotations

import hashlib

from execution import execution, work_for
from release import RELEASE

from intermission import Chunk, Context, File, Pipeline, Source, step

SIZE_BYTES = 768 * 1024


class Frame(Chunk):
    n: int


@step(version=1)
def cut(ctx: Context, source: Source, count: int = 4) -> list[Frame]:
    with execution(ctx, "cut"):
        return [Frame(n=n) for n in range(count)]


@step(version=RELEASE)
def render(ctx: Context, source: Source, frame: Frame) -> File:
    with execution(ctx, "render"):
        seed = f"{source.path.read_text()} {frame.n} {RELEASE}".encode()
        data = hashlib.shake_128(seed).digest(SIZE_BYTES)
        path = ctx.out(f"frame{frame.n}.bin")
        with path.open("wb") as stream:
            stream.write(data[: SIZE_BYTES // 2])
            work_for(ctx, 1.0)
            stream.write(data[SIZE_BYTES // 2 :])
        return path


@step(version=1)
def album(ctx: Context, render: list[File]) -> File:
    with execution(ctx, "album"):
        path = ctx.out("album.bin")
        path.write_bytes(b"".join(one.read_bytes() for one in render))
        return path


frames = Pipeline("frames", [cut, render, album])
