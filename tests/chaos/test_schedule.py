"""The schedule of a run: a seed repeats it, and no fault meets another on the same host."""

from __future__ import annotations

from itertools import pairwise

from chaos.fleet import HOSTS
from chaos.schedule import KINDS, LEASE_S, NEWER, OLDER, PIPELINES, faults, submissions

NAMES = [plan.name for plan in HOSTS]


def test_a_seed_repeats_its_schedule_and_another_does_not() -> None:
    assert faults(7, 180, NAMES) == faults(7, 180, NAMES)
    assert submissions(7, 180) == submissions(7, 180)
    assert faults(7, 180, NAMES) != faults(8, 180, NAMES)
    assert submissions(7, 180) != submissions(8, 180)


def test_one_fault_at_a_time_for_each_target_and_all_end_in_time() -> None:
    for seed in range(20):
        drawn = faults(seed, 180, NAMES)
        assert all(fault.at_s < fault.until_s < 180 for fault in drawn)
        for target in {fault.target for fault in drawn}:
            own = [fault for fault in drawn if fault.target == target]
            assert all(one.until_s < other.at_s for one, other in pairwise(own))


def test_every_kind_of_fault_comes_and_some_stops_outlast_a_lease() -> None:
    drawn = faults(1, 1800, NAMES)
    assert {fault.kind for fault in drawn} == KINDS.keys()
    assert {fault.target for fault in drawn} == {*NAMES, "database", "server"}
    stops = [one.until_s - one.at_s for one in drawn if one.kind.startswith("stop")]
    assert min(stops) < LEASE_S < max(stops)


def test_every_sort_of_job_is_asked_for() -> None:
    drawn = submissions(1, 1800)
    assert {one.pipeline for one in drawn} == {*PIPELINES}
    assert {(one.release, one.over_http) for one in drawn} == {
        (OLDER, False),
        (NEWER, False),
        (NEWER, True),
    }
    assert any(one.cancel_at_s for one in drawn)
    assert all(drawn[one.again].texts == one.texts for one in drawn if one.again is not None)
    assert [one.no for one in drawn] == list(range(len(drawn)))


def test_every_release_of_every_pipeline_has_two_hosts_that_can_run_it() -> None:
    for pipeline in PIPELINES:
        for release in (OLDER, NEWER):
            can = [it for it in HOSTS if it.release == release and pipeline not in it.lacks]
            assert len(can) >= 2
    assert sum(bool(it.lacks) for it in HOSTS) == len(HOSTS) // 3
    assert sum(it.over_http for it in HOSTS) == 2
