"""The lock object: one owner, judged by the store's clock, and a generation that only rises."""

from __future__ import annotations

import json
from typing import Any

import pytest
from flaky_store import FlakyStore

from intermission.backends.ledger.object_ledger.lock import (
    LOCK_KEY,
    LOCK_TTL_S,
    MARGIN,
    STAMP_MARGIN_S,
    Lock,
)
from intermission.errors import LockLost, StoreError, WorkspaceBusy
from intermission.testing.clock import FakeClock, OwnClock

STALE_S = LOCK_TTL_S + STAMP_MARGIN_S + 0.1


class Bucket:
    """A store, and machines with unlike clocks that want its lock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = FlakyStore(self.clock)
        self._machines = 0

    def lock(self, name: str) -> Lock:
        self._machines += 1
        return Lock(self.store, name, OwnClock(self.clock, 1e6 * self._machines))

    def says(self) -> dict[str, Any]:
        return json.loads(self.store.read(LOCK_KEY))


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def holder(bucket: Bucket) -> Lock:
    lock = bucket.lock("holder")
    lock.take()
    return lock


def test_the_first_to_come_creates_it(bucket: Bucket, holder: Lock) -> None:
    says = bucket.says()
    assert (says["owner"], says["generation"], says["state"]) == (holder.owner, 1, "held")
    assert says["ttl_s"] == LOCK_TTL_S
    assert holder.owner.startswith("holder-")
    assert holder.is_held


def test_a_held_lock_is_busy_and_says_whose_and_since_when(bucket: Bucket, holder: Lock) -> None:
    since_ms = bucket.clock.now_ms()
    bucket.clock.advance(20)
    holder.renew()
    bucket.clock.advance(20)
    with pytest.raises(WorkspaceBusy, match=r"holder-.*since 2025-06-15T15:06:40") as caught:
        bucket.lock("thief").take()
    assert (caught.value.owner, caught.value.since_ms) == (holder.owner, since_ms)
    assert "60 s" in caught.value.remedy


def test_a_freed_lock_is_taken_at_once_with_the_next_generation(
    bucket: Bucket, holder: Lock
) -> None:
    holder.release("drained: SIGTERM")
    says = bucket.says()
    assert (says["state"], says["generation"], says["reason"]) == ("free", 1, "drained: SIGTERM")
    assert not holder.is_held
    with pytest.raises(LockLost):
        holder.renew()
    after = bucket.lock("after")
    after.take()
    assert (after.generation, bucket.says()["generation"]) == (2, 2)


def test_only_silence_longer_than_its_life_and_the_margin_makes_it_stale(
    bucket: Bucket, holder: Lock
) -> None:
    thief = bucket.lock("thief")
    bucket.clock.advance(LOCK_TTL_S + STAMP_MARGIN_S)
    with pytest.raises(WorkspaceBusy):
        thief.take()
    bucket.clock.advance(0.001)
    thief.take()
    assert (thief.generation, bucket.says()["owner"]) == (2, thief.owner)


def test_a_holder_gives_up_before_anybody_may_steal(bucket: Bucket, holder: Lock) -> None:
    bucket.clock.advance(LOCK_TTL_S * (1 - MARGIN) - 0.001)
    assert holder.is_held
    bucket.clock.advance(0.001)
    assert not holder.is_held
    with pytest.raises(WorkspaceBusy):
        bucket.lock("thief").take()


def test_renewals_keep_it_and_no_two_of_its_writes_are_alike(bucket: Bucket, holder: Lock) -> None:
    for _ in range(20):
        bucket.clock.advance(15)
        holder.renew()
    with pytest.raises(WorkspaceBusy):
        bucket.lock("thief").take()
    bodies = [data for key, data in bucket.store.written if key == LOCK_KEY]
    assert len(set(bodies)) == len(bodies) == 21
    assert bucket.says()["generation"] == 1


def test_the_late_one_is_told_that_it_lost(bucket: Bucket, holder: Lock) -> None:
    bucket.clock.advance(STALE_S)
    thief = bucket.lock("thief")
    thief.take()
    before = bucket.store.read(LOCK_KEY)
    with pytest.raises(LockLost, match=r"thief-.* \(generation 2\) has it"):
        holder.renew()
    assert not holder.is_held
    holder.release()
    assert bucket.store.read(LOCK_KEY) == before
    assert thief.is_held


def test_a_late_renewal_that_nobody_contested_counts(bucket: Bucket, holder: Lock) -> None:
    bucket.clock.advance(STALE_S)
    holder.renew()
    assert holder.is_held
    with pytest.raises(WorkspaceBusy):
        bucket.lock("thief").take()


def test_the_dead_of_this_machine_are_not_waited_for(bucket: Bucket, holder: Lock) -> None:
    heir = bucket.lock("heir")
    with pytest.raises(WorkspaceBusy):
        heir.take(proven_dead=["somebody else"])
    heir.take(proven_dead=["somebody else", holder.owner])
    assert heir.generation == 2


def test_two_locks_of_one_worker_are_two_owners(bucket: Bucket, holder: Lock) -> None:
    with pytest.raises(WorkspaceBusy):
        bucket.lock("holder").take()


@pytest.mark.parametrize("method", ["create", "replace"])
def test_a_take_whose_answer_was_lost_is_found_to_be_ours(bucket: Bucket, method: str) -> None:
    if method == "replace":
        before = bucket.lock("before")
        before.take()
        before.release()
    lock = bucket.lock("one")
    bucket.store.lose_answer(method, LOCK_KEY)
    with pytest.raises(StoreError):
        lock.take()
    assert not lock.is_held
    lock.take()
    assert lock.is_held
    assert bucket.says()["owner"] == lock.owner
    assert bucket.says()["generation"] == lock.generation


@pytest.mark.parametrize("arrives", [True, False])
def test_a_renewal_of_unknown_outcome_is_cleared_up_by_the_next(
    bucket: Bucket, holder: Lock, arrives: bool
) -> None:
    (bucket.store.lose_answer if arrives else bucket.store.lose_request)("replace", LOCK_KEY)
    bucket.clock.advance(15)
    deadline_s = holder.deadline_s
    with pytest.raises(StoreError):
        holder.renew()
    assert holder.deadline_s == deadline_s, "what nobody confirmed must not be counted on"
    holder.renew()
    assert holder.deadline_s == deadline_s + 15
    holder.renew()


def test_a_release_of_unknown_outcome_can_be_repeated(bucket: Bucket, holder: Lock) -> None:
    bucket.store.lose_answer("replace", LOCK_KEY)
    with pytest.raises(StoreError):
        holder.release()
    holder.release()
    assert bucket.says()["state"] == "free"


def test_the_deadline_begins_before_the_request(bucket: Bucket, holder: Lock) -> None:
    replace = bucket.store.replace

    def slow(*args: Any, **options: Any) -> Any:
        bucket.clock.advance(10)
        return replace(*args, **options)

    asked_at_s = holder.deadline_s - LOCK_TTL_S * (1 - MARGIN)
    bucket.store.replace = slow
    holder.renew()
    assert holder.deadline_s == asked_at_s + LOCK_TTL_S * (1 - MARGIN)


def test_a_removed_lock_is_lost(bucket: Bucket, holder: Lock) -> None:
    bucket.store.delete(LOCK_KEY)
    with pytest.raises(LockLost, match="nobody has it"):
        holder.renew()


def test_looking_at_the_clock_leaves_nothing_behind(bucket: Bucket, holder: Lock) -> None:
    with pytest.raises(WorkspaceBusy):
        bucket.lock("thief").take()
    assert [stat.key for stat in bucket.store.list("")] == [LOCK_KEY]


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"\xff", b'{"owner": "a", "generation": 0}'])
def test_something_else_in_its_place_is_an_error_with_a_remedy(bucket: Bucket, body: bytes) -> None:
    bucket.store.create(LOCK_KEY, body)
    with pytest.raises(StoreError, match="expected a lock") as caught:
        bucket.lock("one").take()
    assert "remove it" in caught.value.remedy


def test_an_unknown_state_is_no_lock(bucket: Bucket, holder: Lock) -> None:
    bucket.store.replace(LOCK_KEY, json.dumps(bucket.says() | {"state": "half"}).encode())
    with pytest.raises(StoreError, match="state: Input should be 'held' or 'free'"):
        bucket.lock("one").take()


def test_what_a_newer_program_adds_is_passed_over(bucket: Bucket, holder: Lock) -> None:
    holder.release()
    bucket.store.replace(LOCK_KEY, json.dumps(bucket.says() | {"mood": "calm"}).encode())
    after = bucket.lock("after")
    after.take()
    assert after.generation == 2
