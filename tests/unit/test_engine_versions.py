"""Outputs of several jobs over one source: beside each other, and one of them in front."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from intermission.backends.store.memory import MemoryStore
from intermission.engine.publish import publish, read_versions, version_of
from intermission.errors import StoreError
from intermission.maintenance.gc import Swept, collect
from intermission.model import FileRef, Job, StepKind, StepSpec, identity
from intermission.ports.store import Store
from intermission.testing.clock import FakeClock
from intermission.testing.faults import Crashed, crashing
from intermission.testing.jobs import line_job

PARTS = StepSpec("parts", 1, StepKind.MAP, publish="{version}{name}")
FRONT = StepSpec("front", 1, StepKind.SINGLE, publish="{name}", entrypoints=True)
FIRST = replace(line_job(), key=identity("first"))
SECOND = replace(line_job(), key=identity("second"))
THIRD = replace(line_job(), key=identity("third"))
GRACE_S = 100.0


class Site:
    """A workspace and its outputs."""

    def __init__(self, scratch: Path) -> None:
        self.clock = FakeClock()
        self.store, self.outputs = MemoryStore(self.clock), MemoryStore(self.clock)
        self.scratch = scratch

    def file(self, name: str, data: bytes) -> FileRef:
        sha256 = hashlib.sha256(data).hexdigest()
        key = f"artifacts/a/{sha256}/{name}"
        if self.store.stat(key) is None:
            self.store.create(key, data)
        return FileRef(name, key, len(data), sha256)

    def publish(self, job: Job, spec: StepSpec, **files: str) -> list[str]:
        refs = [self.file(name.replace("_", "."), data.encode()) for name, data in files.items()]
        return publish(self.store, self.outputs, job, spec, 0, refs, self.scratch)

    def release(self, job: Job) -> None:
        """All a job publishes: a part, a list below its folder, and what leads there."""
        self.publish(job, PARTS, part_mp4=job.key, list_m3u8="part.mp4")
        self.publish(job, FRONT, list_m3u8="{version}part.mp4", other_mpd="<{version}part.mp4>")

    def sweep(self, *, dry_run: bool = False) -> Swept:
        def outputs_of(job_key: str) -> Store | None:
            return self.outputs if len(job_key) == 40 else None

        return collect(
            self.store, self.clock, grace_s=GRACE_S, dry_run=dry_run, outputs_of=outputs_of
        )

    def names(self) -> list[str]:
        return [stat.key for stat in self.outputs.list("")]

    def leads_to(self) -> str:
        """What is behind the file at the top."""
        return self.outputs.read(self.outputs.read("list.m3u8").decode()).decode()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_the_first_job_has_the_top_and_every_other_a_folder(site: Site) -> None:
    assert version_of(site.store, FIRST) == ""
    assert version_of(site.store, SECOND) == f"{SECOND.key[:10]}/"
    assert version_of(site.store, FIRST) == ""
    other = replace(SECOND, pipeline="other")
    assert version_of(site.store, other) == "", "each pipeline has a first job"


def test_the_front_leads_to_the_job_that_was_released_last(site: Site) -> None:
    site.release(FIRST)
    assert site.leads_to() == FIRST.key
    site.publish(SECOND, PARTS, part_mp4="new", list_m3u8="part.mp4")
    assert site.leads_to() == FIRST.key, "the old is used until the new is complete"
    site.release(SECOND)
    assert site.leads_to() == SECOND.key
    folder = SECOND.key[:10]
    assert site.outputs.read("other.mpd").decode() == f"<{folder}/part.mp4>"
    assert site.outputs.read(f"{folder}/list.m3u8") == b"part.mp4"
    site.release(FIRST)
    assert site.leads_to() == FIRST.key
    versions = read_versions(site.store, FIRST.pipeline)
    assert versions is not None
    assert (versions.front, versions.former) == (FIRST.key, (SECOND.key,))


def test_a_job_that_goes_on_later_does_not_take_the_top_by_the_way(site: Site) -> None:
    """The first was interrupted, and the second is in front by now."""
    site.publish(FIRST, PARTS, part_mp4=FIRST.key)
    site.release(SECOND)
    site.publish(FIRST, PARTS, list_m3u8="part.mp4")
    assert site.leads_to() == SECOND.key
    site.release(FIRST)
    assert site.leads_to() == FIRST.key


@pytest.mark.parametrize("point", ["before-publish", "after-publish"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_crash_in_the_switch_leaves_something_whole(site: Site, point: str, nth: int) -> None:
    site.release(FIRST)
    site.publish(SECOND, PARTS, part_mp4=SECOND.key, list_m3u8="part.mp4")
    with crashing(point, nth), pytest.raises(Crashed):
        site.release(SECOND)
    assert site.leads_to() in (FIRST.key, SECOND.key)
    for _ in range(2):
        site.sweep()
        site.clock.advance(GRACE_S * 2)
    assert site.leads_to() in (FIRST.key, SECOND.key)
    site.release(SECOND)
    assert site.leads_to() == SECOND.key
    assert SECOND.key[:10] in site.outputs.read("other.mpd").decode()


def test_a_crash_on_the_way_back_loses_nothing(site: Site) -> None:
    """The front leads to a job that was in front before, and this is not written down yet."""
    for job in (FIRST, SECOND, FIRST):
        site.release(job)
    with crashing("after-publish"), pytest.raises(Crashed):
        site.release(SECOND)
    for _ in range(2):
        site.sweep()
        site.clock.advance(GRACE_S * 2)
    site.sweep()
    assert site.leads_to() == SECOND.key


def test_nothing_is_written_again_that_is_in_its_place(site: Site) -> None:
    site.release(FIRST)
    before = {stat.key: stat.version for stat in site.outputs.list("")}
    site.release(FIRST)
    assert {stat.key: stat.version for stat in site.outputs.list("")} == before


def test_what_was_in_front_once_goes_after_a_grace(site: Site) -> None:
    site.release(FIRST)
    site.release(SECOND)
    site.release(THIRD)
    folder = f"{THIRD.key[:10]}"
    wanted = [f"{folder}/list.m3u8", f"{folder}/part.mp4", "list.m3u8", "other.mpd"]
    site.clock.advance(GRACE_S * 10)
    everything = site.names()
    site.sweep()
    site.clock.advance(GRACE_S - 1)
    site.sweep()
    assert site.names() == everything
    site.clock.advance(1)
    assert site.sweep(dry_run=True).removed >= 3
    assert site.names() == everything
    site.sweep()
    assert sorted(site.names()) == sorted(wanted)
    assert site.leads_to() == THIRD.key
    versions = read_versions(site.store, FIRST.pipeline)
    assert versions is not None
    assert versions.former == ()
    site.release(FIRST)
    assert site.leads_to() == FIRST.key


def test_a_file_that_somebody_else_wrote_there_stays(site: Site) -> None:
    site.release(FIRST)
    site.release(SECOND)
    site.outputs.replace("part.mp4", b"my own")
    for _ in range(3):
        site.clock.advance(GRACE_S)
        site.sweep()
    assert site.outputs.read("part.mp4") == b"my own"


def test_a_version_that_is_not_finished_stays(site: Site) -> None:
    site.release(FIRST)
    site.publish(SECOND, PARTS, part_mp4="half")
    for _ in range(3):
        site.clock.advance(GRACE_S)
        site.sweep()
    assert f"{SECOND.key[:10]}/part.mp4" in site.names()


def test_what_is_no_record_is_said_so(site: Site) -> None:
    site.store.create(f"published/.versions/{FIRST.pipeline}.json", b"{}")
    with pytest.raises(StoreError, match="found something else"):
        site.release(FIRST)
