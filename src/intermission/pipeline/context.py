"""What a running step is given: its folder, its progress, its log, its cancellation."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from intermission.errors import IntermissionError, UsageError
from intermission.pipeline.chunk import Chunk

_NAME = re.compile(r"[\w@+=,()\[\]][\w@+=,()\[\] .-]*(/[\w@+=,()\[\]][\w@+=,()\[\] .-]*)*")

RESULT_NAME = "result.json"
"""The artifact that holds a result too large for a receipt; no step may write it itself."""


def is_output_name(name: str) -> bool:
    """Whether an output file may be called so: relative, plain, and not ours."""
    return _NAME.fullmatch(name) is not None and name != RESULT_NAME


class Deferred(IntermissionError):
    """A step handed its work to somebody else, who will report under `token`."""

    def __init__(self, token: str, timeout_s: float) -> None:
        super().__init__(f"deferred until {token} is reported")
        self.token = token
        self.timeout_s = timeout_s


def _nothing(_: float) -> None:
    return None


def _never() -> bool:
    return False


class Context:
    """One attempt's view of the world. Build one with a folder alone to unit-test a step."""

    def __init__(
        self,
        folder: Path | None,
        *,
        idempotency_key: str = "",
        attempt: int = 1,
        log: logging.Logger | None = None,
        report: Callable[[float], None] = _nothing,
        is_cancelled: Callable[[], bool] = _never,
        batch: Sequence[Chunk] = (),
    ) -> None:
        self.folder = folder
        self.idempotency_key = idempotency_key
        """Equal for every attempt at the same task: pass it on to a paid API."""
        self.attempt = attempt
        self.batch = batch
        """For a step with `batch_by`: the chunks this slot was given at once, in order, without
        those that are finished."""
        self.log = log or logging.getLogger("intermission.step")
        self._report = report
        self._is_cancelled = is_cancelled

    def out(self, name: str) -> Path:
        """A path for an output file. What is written there becomes an artifact."""
        if not is_output_name(name):
            raise UsageError(
                f"an output file cannot be named {name!r}.",
                remedy="Use a relative name of letters, digits, spaces and . - _ without '..'; "
                f"{RESULT_NAME} is taken.",
            )
        if self.folder is None:
            raise UsageError(
                f"a step with durable=False stores nothing, so it cannot keep {name!r}.",
                remedy="Remove durable=False from the step.",
            )
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def progress(self, fraction: float) -> None:
        """Say how much of this task is done, from 0 to 1."""
        self._report(min(max(0.0, fraction), 1.0))

    @property
    def cancelled(self) -> bool:
        """True once nobody wants the result any more; stop soon, or be killed."""
        return self._is_cancelled()

    def defer(self, token: str, *, timeout_s: float = 3600.0) -> None:
        """Stop here: an outside event finishes the task under `token`, or it times out."""
        raise Deferred(token, timeout_s)
