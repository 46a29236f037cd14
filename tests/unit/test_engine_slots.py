"""What a worker knows of its slots: which task is where, and what has been answered for."""

from __future__ import annotations

import os
import pickle
from multiprocessing import Pipe

from intermission.engine.messages import Said
from intermission.engine.outcome import Ends, Failed, Finished
from intermission.engine.slots import Slot
from intermission.engine.slots import Slots as _Slots
from intermission.model import Completion, Lease


class Slots(_Slots):
    """Slots without processes."""

    def __init__(self, *slots: Slot) -> None:
        self._slots = {slot.no: slot for slot in slots}


def slot(no: int, orders: str, *task_ids: int) -> Slot:
    leases = {id: Lease(id, 1, 1, "job", "hear", 0, f"key-{id}") for id in task_ids}
    tokens = os.pipe()
    os.set_blocking(tokens[0], False)
    return Slot(no, Pipe()[0], tokens, orders, leases)


def said(*outcomes: Finished | Failed) -> list[Ends | Failed]:
    """As a worker receives it."""
    return pickle.loads(pickle.dumps(Said(outcomes)))


def test_a_task_is_found_where_it_runs_and_ids_of_other_ledgers_are_not_its_own() -> None:
    one, two = slot(0, "a", 1, 2), slot(1, "b", 1, 3)
    slots = Slots(one, two)
    assert slots.running("a", 1) is one
    assert slots.running("b", 1) is two
    assert slots.running("a", 3) is None


def test_a_slot_that_has_answered_for_a_task_does_not_run_it() -> None:
    """Its lease may be found gone before its end is recorded: nobody is to be killed for that."""
    one = slot(0, "a", 1, 2)
    one.answered([1], 0.0)
    assert Slots(one).running("a", 1) is None
    assert Slots(one).running("a", 2) is one


def test_ends_come_back_with_the_leases_they_are_of() -> None:
    one = slot(0, "a", 1, 2)
    died = Failed(2, 1, "Broken", "it broke", False)
    ends, trouble = said(
        Finished(Completion(1, 1, "null"), 0.5, ("hm",)),
        died,
        Finished(Completion(7, 1, "null"), 0.1),
    )
    assert isinstance(ends, Ends)
    ((lease, completion, took_s, warnings),) = one.finished(ends, 0.0)
    assert (lease.task_id, completion, took_s, warnings) == (
        1,
        Completion(1, 1, "null"),
        0.5,
        ("hm",),
    )
    assert trouble == died
    assert said(died) == [died]
    assert list(one.batch) == [2], "task 7 was never its"


def test_a_batch_with_a_time_out_gets_as_long_again_for_the_next() -> None:
    one = slot(0, "a", 1, 2)
    one.deadline_s = 10.0
    one.answered([1], 4.0)
    assert (one.started_s, one.deadline_s) == (4.0, 14.0)
    one.answered([2], 5.0)
    assert one.deadline_s is None


def test_what_was_not_begun_is_recalled_and_nothing_else() -> None:
    one = slot(0, "a", 1, 2, 3, 4)
    assert one.recall() == [], "it may not be: it was given no tokens"
    os.write(one.tokens[1], bytes(4))
    os.read(one.tokens[0], 1)  # it begins the first
    one.answered([1], 0.0)
    os.read(one.tokens[0], 1)  # and the second
    assert [lease.task_id for lease in one.recall()] == [3, 4]
    assert list(one.batch) == [2]
    assert one.recall() == []
    one.close()
