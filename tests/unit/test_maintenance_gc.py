"""Garbage collection: two passes, a grace apart, and never a file that somebody may still name."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_bench import Bench

from intermission.maintenance.gc import Swept, attempts_under_way, collect
from intermission.model import Heartbeat
from intermission.telemetry import listen

GRACE_S = 100.0
ORPHAN = "artifacts/hear/k/00001-dead/words.txt"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.submit()
    made.finish_all()
    made.store.create(ORPHAN, b"orphan")
    return made


def sweep(bench: Bench, *, dry_run: bool = False) -> Swept:
    return collect(bench.store, bench.clock, grace_s=GRACE_S, dry_run=dry_run)


def test_a_file_goes_in_the_second_pass_a_grace_later(bench: Bench) -> None:
    named = set(bench.keys("artifacts/")) - {ORPHAN}
    bench.clock.advance(GRACE_S * 10)
    assert sweep(bench) == Swept(0, 0, 1)
    bench.clock.advance(GRACE_S - 0.001)
    assert sweep(bench) == Swept(0, 0, 1)
    bench.clock.advance(0.001)
    assert sweep(bench) == Swept(1, 6, 0)
    assert set(bench.keys("artifacts/")) == named
    assert sweep(bench) == Swept(0, 0, 0)


def test_a_file_that_was_touched_since_waits_on(bench: Bench) -> None:
    sweep(bench)
    bench.clock.advance(GRACE_S * 2)
    bench.store.replace(ORPHAN, b"still being written")
    assert sweep(bench) == Swept(0, 0, 1)
    bench.clock.advance(GRACE_S)
    assert sweep(bench).removed == 1


def test_a_file_that_a_receipt_names_by_now_stays(bench: Bench, tmp_path: Path) -> None:
    new = Bench(tmp_path / "new")
    new.submit()
    (lease,) = new.take()

    def passing(point: str) -> None:
        if point == "after-artifacts":
            new.clock.advance(GRACE_S)
            assert sweep(new) == Swept(0, 0, 1)
            new.clock.advance(1)

    with listen(passing):
        new.finish(lease)
    new.clock.advance(GRACE_S * 2)
    assert sweep(new) == Swept(0, 0, 0)
    assert new.store.stat(new.receipt("audio").files[0].key) is not None


def test_a_receipt_created_during_a_pass_counts(bench: Bench, tmp_path: Path) -> None:
    new = Bench(tmp_path / "new")
    new.submit()
    listing = new.store.list
    late: list[str] = []

    def list_slowly(prefix: str) -> object:
        found = list(listing(prefix))
        if prefix == "artifacts/" and late:
            late.pop()
            new.store.create("receipts/hear/k.json", receipt)
        return iter(found)

    (lease,) = new.take()
    new.finish(lease)
    receipt = new.store.read(new.receipt_key("audio"))
    new.store.delete(new.receipt_key("audio"))
    sweep(new)
    new.clock.advance(GRACE_S * 2)
    late.append("now")
    new.store.list = list_slowly  # type: ignore[assignment]
    assert sweep(new) == Swept(0, 0, 0)


def test_a_dry_run_changes_nothing(bench: Bench) -> None:
    before = bench.keys("")
    assert sweep(bench, dry_run=True) == Swept(0, 0, 1)
    assert bench.keys("") == before
    sweep(bench)
    bench.clock.advance(GRACE_S)
    before = bench.keys("")
    assert sweep(bench, dry_run=True) == Swept(1, 6, 0)
    assert bench.keys("") == before


def test_what_lost_its_receipt_goes_too(bench: Bench) -> None:
    file = bench.receipt("hear[0]").files[0].key
    bench.store.replace(bench.receipt_key("hear[0]"), b"no receipt")
    sweep(bench)
    bench.clock.advance(GRACE_S)
    assert sweep(bench).removed == 2
    assert bench.store.stat(file) is None


@pytest.mark.parametrize("memory", [b"", b"[]", b"null", b"{"])
def test_a_pass_that_cannot_be_remembered_never_happened(bench: Bench, memory: bytes) -> None:
    sweep(bench)
    bench.clock.advance(GRACE_S * 2)
    bench.store.replace("garbage.json", memory)
    assert sweep(bench) == Swept(0, 0, 1)


def test_a_wall_clock_set_back_only_makes_it_wait(bench: Bench) -> None:
    sweep(bench)
    bench.clock.jump_wall(-3600)
    bench.clock.advance(GRACE_S * 2)
    assert sweep(bench) == Swept(0, 0, 1)
    bench.clock.advance(3600)
    assert sweep(bench).removed == 1


def test_an_attempt_that_is_under_way_keeps_its_files(bench: Bench, tmp_path: Path) -> None:
    """However long it runs: its files are named by nobody before it ends."""
    new = Bench(tmp_path / "new")
    new.submit()
    (lease,) = new.take()

    def passing(point: str) -> None:
        if point == "after-artifacts":
            for _ in range(3):
                new.clock.advance(GRACE_S * 2)
                new.ledger.renew("w", [Heartbeat(lease.task_id, lease.fence)], lease_ttl_s=60)
                collect_beside(new)

    with listen(passing):
        assert new.finish(lease)
    file = new.receipt("audio").files[0]
    assert new.store.stat(file.key) is not None
    new.store.create(f"artifacts/audio/{lease.key}/00007-dead/words.txt", b"of nobody any more")
    new.clock.advance(GRACE_S)
    assert collect_beside(new) == Swept(0, 0, 1)
    new.clock.advance(GRACE_S)
    assert collect_beside(new).removed == 1


def collect_beside(bench: Bench) -> Swept:
    """A pass that asks the ledger, as somebody else's on another machine."""
    return collect(
        bench.store,
        bench.clock,
        grace_s=GRACE_S,
        under_way=lambda: attempts_under_way(bench.ledger, bench.store),
    )
