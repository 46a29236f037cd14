"""A step that writes a file early and ends late: longer than a lease, and than two passes of gc."""

from __future__ import annotations

import hashlib

from execution import execution, work_for
from release import RELEASE

from intermission import Context, File, Pipeline, Source, step


@step(version=1)
def title(ctx: Context, source: Source) -> str:
    with execution(ctx, "title"):
        return source.path.read_text()[:12]


@step(version=RELEASE)
def develop(ctx: Context, source: Source, title: str) -> File:
    with execution(ctx, "develop"):
        seed = f"{source.path.read_text()} {RELEASE}".encode()
        ctx.out("opening.bin").write_bytes(hashlib.shake_128(seed).digest(64 * 1024))
        work_for(ctx, 25.0)
        path = ctx.out("ending.txt")
        path.write_text(f"{title} {RELEASE}")
        return path


reel = Pipeline("reel", [title, develop])
