"""Watching places: a job for every file that appears there, once it is complete.

A file in a folder counts as complete when nothing about it changed between two looks; an object
in a bucket is complete as soon as it is listed. Each version of a file is submitted once, however
often the watching is started again: the ledger knows which it had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from intermission.app.fleet import Fleet
from intermission.app.places import ObjectPlace, Place, place_of
from intermission.engine.source import signature
from intermission.errors import IntermissionError, SourceError
from intermission.model import Job
from intermission.pipeline import load

PARTIAL = (".part", ".partial", ".crdownload", ".tmp", ".filepart", "~")
"""How the names of files end that somebody is still writing."""


class FolderWatch:
    """Looks at places again and again; what is new and complete becomes a job."""

    def __init__(
        self,
        fleet: Fleet,
        ref: str,
        places: Sequence[str],
        params: Mapping[str, Any],
        *,
        include: Sequence[str] = (),
        priority: int = 0,
    ) -> None:
        self._fleet = fleet
        self._ref = ref
        self._places = places
        self._params = params
        self._include = include
        self._priority = priority
        self._outputs = load(ref).output
        self._before: dict[Place, str] = {}
        """By file, its version at the last look."""
        self._submitted = {
            place_of(row.job.source): row.job.source.version
            for row in reversed(fleet.ledger.jobs())
            if row.job.pipeline == load(ref).name
        }

    def look(self) -> Iterator[tuple[Place, Job | IntermissionError]]:
        """Submit what is new; each with its job, or with why there is none."""
        found = dict(self._versions())
        for place, version in found.items():
            settled = isinstance(place, ObjectPlace) or self._before.get(place) == version
            if not settled or self._submitted.get(place) == version:
                continue
            self._submitted[place] = version
            try:
                job, _ = self._fleet.submit(self._ref, place, self._params, priority=self._priority)
            except IntermissionError as e:
                yield place, e
            else:
                yield place, job
        self._before = found

    def _versions(self) -> Iterator[tuple[Place, str]]:
        for one in self._places:
            try:
                places = self._fleet.app.sources([one], self._include, self._outputs)
            except SourceError:  # an empty folder is nothing unusual here
                continue
            for place in places:
                if place.name.endswith(PARTIAL):
                    continue
                if isinstance(place, Path):
                    try:
                        if place.stat().st_size:
                            yield place, signature(place)
                    except (OSError, SourceError):  # gone since it was listed
                        continue
                else:
                    yield place, place.version
