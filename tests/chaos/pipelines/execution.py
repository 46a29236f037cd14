"""What a step says about itself: every execution leaves lines in a file outside all workspaces.

The environment says where that file is and which host this is. A host's folder of faults may hold
a file `EIO`: then every step that begins there meets an input/output error.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from intermission import Context, TaskError

HOST = os.environ.get("CHAOS_HOST", "")
PACE = float(os.environ.get("CHAOS_PACE", "1"))


@contextmanager
def execution(ctx: Context, step: str) -> Iterator[None]:
    """One execution of a step, from its first line to its last."""
    _say(ctx, step, "began")
    try:
        if (Path(os.environ.get("CHAOS_FAULTS", "/nowhere")) / "EIO").exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(ctx.folder))
        yield
    except BaseException as e:
        _say(ctx, step, "raised", error=f"{type(e).__name__}: {e}")
        raise
    _say(ctx, step, "ended")


def work_for(ctx: Context, seconds: float) -> None:
    """Be busy for a while, and stop soon when nobody wants the result any more."""
    until_s = time.monotonic() + seconds * PACE
    while time.monotonic() < until_s:
        if ctx.cancelled:
            raise TaskError("nobody wants the result any more")
        time.sleep(min(0.1, max(0.0, until_s - time.monotonic())))


def _say(ctx: Context, step: str, what: str, **more: str) -> None:
    line = {
        "at": time.time(),
        "host": HOST,
        "step": step,
        "task": ctx.idempotency_key,
        "attempt": "" if ctx.folder is None else ctx.folder.name,
        "what": what,
        **more,
    }
    fd = os.open(os.environ["CHAOS_RECORD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(fd, json.dumps(line).encode() + b"\n")  # one write: lines never mix
    finally:
        os.close(fd)
