"""The transition tables, identities and round trips of the model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intermission.model import (
    CLAIMABLE,
    FINISHED,
    HELD,
    JOB_TRANSITIONS,
    TRANSITIONS,
    Edge,
    EdgeKind,
    FileRef,
    Job,
    JobRow,
    JobState,
    Receipt,
    Source,
    StepKind,
    StepSpec,
    TaskRow,
    TaskState,
    canonical,
    identity,
)

S = TaskState


def test_every_state_is_in_the_tables() -> None:
    assert set(TRANSITIONS) == set(TaskState)
    assert set(JOB_TRANSITIONS) == set(JobState)


def test_no_state_leads_to_itself() -> None:
    assert not [state for state, after in TRANSITIONS.items() if state in after]
    assert not [state for state, after in JOB_TRANSITIONS.items() if state in after]


def test_exactly_the_claimable_states_lead_to_leased() -> None:
    assert {state for state, after in TRANSITIONS.items() if S.LEASED in after} == CLAIMABLE


def test_the_groups_of_states_do_not_overlap() -> None:
    assert {S.BLOCKED}.union(CLAIMABLE, HELD, FINISHED) == set(TaskState)
    assert len(CLAIMABLE) + len(HELD) + len(FINISHED) + 1 == len(TaskState)


def test_every_unfinished_task_can_be_cancelled_and_no_finished_one() -> None:
    cancellable = {state for state, after in TRANSITIONS.items() if S.CANCELLED in after}
    assert cancellable == set(TaskState) - FINISHED


def test_only_held_or_claimable_tasks_can_finish() -> None:
    finishing = {state for state, after in TRANSITIONS.items() if S.DONE in after}
    assert finishing == HELD | CLAIMABLE, "by a lease, or because a receipt stands"


@pytest.mark.parametrize("start", sorted(TaskState))
def test_every_state_can_still_reach_done(start: TaskState) -> None:
    seen: set[TaskState] = set()
    todo = [start]
    while todo:
        state = todo.pop()
        if state not in seen:
            seen.add(state)
            todo.extend(TRANSITIONS[state])
    assert S.DONE in seen


def test_an_ended_job_only_starts_again_or_is_given_up() -> None:
    for state in (JobState.DONE, JobState.FAILED, JobState.CANCELLED):
        assert JOB_TRANSITIONS[state] <= {JobState.RUNNING, JobState.CANCELLED}


@given(st.lists(st.text()), st.lists(st.text()))
def test_identity_tells_sequences_apart(one: list[str], other: list[str]) -> None:
    assert (identity(*one) == identity(*other)) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        (("a", ""), ("a",)),
        (("", "a"), ("a", "")),
        (("1:a",), ("a",)),
        (("a1:b",), ("a", "b")),
        (("a", "b"), ("b", "a")),
    ],
)
def test_identity_respects_the_borders_of_its_parts(
    one: tuple[str, ...], other: tuple[str, ...]
) -> None:
    assert identity(*one) != identity(*other)


def test_identity_is_the_same_everywhere() -> None:
    # Receipts are found by these names: another value here orphans every workspace there is.
    assert identity("hear", "3") == "40cc92dc6bf07e7212e976dc8a5e627e48b61be0"
    assert len(identity()) == 40


def test_canonical_does_not_depend_on_order() -> None:
    one = {"a": 1, "b": {"c": [1, 2], "d": None}}
    other = {"b": {"d": None, "c": [1, 2]}, "a": 1}
    assert canonical(one) == canonical(other) == '{"a":1,"b":{"c":[1,2],"d":null}}'
    assert canonical({"a": [1, 2]}) != canonical({"a": [2, 1]})
    assert canonical("é") == '"é"'


JOB = Job(
    key="k",
    pipeline="transcribe",
    graph="0123456789abcdef0123",
    source=Source("file:///videos/meeting%20one.mp4", "f1", 9),
    params='{"every_s":60}',
    steps=(
        StepSpec("spans", 1, StepKind.PLAN, reads_source=True, params=("every_s",)),
        StepSpec(
            "hear",
            3,
            StepKind.MAP,
            edges=(Edge("audio", "audio", EdgeKind.ONE), Edge("cut", "cut", EdgeKind.SAME)),
            plan="spans",
            needs="gpu",
            attempts=4,
            timeout_s=600,
            concurrency=2,
            retry_delays_s=(1, 2.5),
            skippable=True,
            publish="chunks/{index}.txt",
        ),
        StepSpec("join", 1, StepKind.REDUCE, edges=(Edge("hear", "hear", EdgeKind.ALL),)),
    ),
    priority=2,
)


def test_a_job_survives_json() -> None:
    again = Job.from_json(JOB.to_json())
    assert again == JOB
    assert type(again.steps[1].kind) is StepKind
    assert type(again.steps[1].edges[1].kind) is EdgeKind
    assert type(again.steps[1].retry_delays_s) is tuple
    hash(again)


def test_a_job_knows_its_steps() -> None:
    assert JOB.step("hear").version == 3
    with pytest.raises(KeyError, match="nothing"):
        JOB.step("nothing")


@pytest.mark.parametrize("chunk", [None, '{"start_ms":0}'])
def test_a_receipt_survives_json(chunk: str | None) -> None:
    file = FileRef("a b/ü.txt", "jobs/x/1", 3, "00" * 32)
    receipt = Receipt("t", "hear", 3, "a1", 7, '{"é":1}', (file, file), "w", 99, chunk)
    assert Receipt.from_json(receipt.to_json()) == receipt
    assert Receipt.from_json(receipt.to_json().encode()) == receipt
    assert set(json.loads(receipt.to_json())) == {f.name for f in dataclasses.fields(Receipt)}


def test_a_source_knows_its_file() -> None:
    assert JOB.source.path == Path("/videos/meeting one.mp4")
    assert JOB.source.name == "meeting one.mp4"
    with pytest.raises(ValueError, match="s3://b/k is not a local file"):
        _ = Source("s3://b/k", "f").path


def test_rows_read_well() -> None:
    row = TaskRow(1, "hear", 7, "k", '{"start_ms":0}', S.DONE, 1, 1)
    assert row.name == "hear[7]"
    assert dataclasses.replace(row, chunk=None).name == "hear"
    counts = {"hear": {S.DONE: 2, S.FAILED: 1}, "join": {S.BLOCKED: 1}}
    job = JobRow(1, JOB, JobState.RUNNING, 0, 0, counts=counts)
    assert (job.total(), job.total(S.DONE), job.total(S.FAILED, S.BLOCKED)) == (4, 2, 2)


@pytest.mark.parametrize(
    ("state", "tries"),
    [
        (TaskState.PENDING, 1),
        (TaskState.RUNNING, 2),
        (TaskState.DONE, 2),
        (TaskState.RETRYING, 1),
        (TaskState.FAILED, 1),
    ],
)
def test_the_attempt_under_way_or_done_is_counted_for_people(state: TaskState, tries: int) -> None:
    row = TaskRow(1, "hear", 0, "key", None, state, attempts=1, fence=4)
    assert row.tries == tries
