"""No progress at all: warnings and errors alone, for `--quiet`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from intermission.cli.command import say
from intermission.cli.formatting import near
from intermission.cli.plain_reporter import drain_text, end_text

if TYPE_CHECKING:
    from intermission.operations import SourceRun


class QuietReporter:
    def found(self, sources: int) -> None:
        """Nothing to say."""

    def opened(self, run: SourceRun) -> None:
        """Nothing to say."""

    def tick(self) -> None:
        """Nothing to say."""

    def draining(self, reason: str) -> None:
        say(drain_text(reason))

    def closed(self, run: SourceRun) -> None:
        for warning in run.stats.warnings:
            say(f"{near(run.path)}: warning: {warning}")
        if not run.done:
            say(f"{near(run.path)}: {end_text(run)}")

    def finish(self) -> None:
        """Nothing is left open."""
