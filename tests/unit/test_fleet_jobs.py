"""A fleet's jobs, opened by its workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from intermission import Context, Pipeline, step
from intermission.composition.fleet import Fleet
from intermission.errors import LedgerError
from intermission.settings import Settings


def test_a_job_that_is_gone_from_the_ledger_is_the_ledgers_fault(tmp_path: Path) -> None:
    """A ledger was restored after the claim: the worker waits and asks again."""
    fleet = Fleet(Settings(ledger=str(tmp_path / "ledger.sqlite")))
    with pytest.raises(LedgerError, match="gone from the ledger"):
        fleet.open_job(fleet.ledger, "0123456789abcdef", "worker")


@step(version=1)
def words(ctx: Context) -> None:
    ctx.out("words.txt").write_text("some")


@step(version=1)
def number() -> int:
    return 1


def test_sources_are_named_in_order_where_files_are_made(tmp_path: Path) -> None:
    """And nothing is written for names that nobody will need."""
    fleet = Fleet(Settings(ledger=str(tmp_path / "ledger.sqlite")))
    for name in ("talk.mp4", "talk.mp3"):
        (tmp_path / name).write_text(name)
        fleet.submit(Pipeline("words", [words]), str(tmp_path / name), {})
        fleet.submit(Pipeline("number", [number]), str(tmp_path / name), {})
    names = tmp_path / ".intermission" / "outputs"
    assert sorted(str(path.relative_to(names)) for path in names.glob("*/*")) == [
        "words/talk",
        "words/talk.mp3",
    ]
