"""Standard output and error whose reader may leave.

`intermission ls | head -1` has told its reader enough, and a run goes on whether or not anybody
still listens. So a closed pipe is noted and otherwise ignored, here and nowhere else.
"""

from __future__ import annotations

import io
import sys
from typing import TextIO


class _Patient(io.FileIO):
    """A file that swallows what nobody reads any more."""

    reader_left = False

    def write(self, data: object) -> int | None:
        if self.reader_left:
            return memoryview(data).nbytes  # type: ignore[arg-type]
        try:
            return super().write(data)  # type: ignore[arg-type]
        except BrokenPipeError:
            self.reader_left = True
            return memoryview(data).nbytes  # type: ignore[arg-type]


def make_patient() -> None:
    """Replace this process's standard output and error."""
    sys.stdout = _patient(sys.stdout)
    sys.stderr = _patient(sys.stderr)


def reader_left() -> bool:
    """Whether nobody reads standard output any more, as far as writing has shown."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return isinstance(raw, _Patient) and raw.reader_left


def _patient(stream: TextIO) -> TextIO:
    stream.flush()
    raw = _Patient(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors="surrogateescape",  # a path leaves as the bytes it is
        line_buffering=stream.isatty() or stream is sys.__stderr__,
    )
