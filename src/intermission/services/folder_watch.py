"""One watched place: a job for every file that appears there, once it is complete.

A file in a folder counts as complete when nothing about it changed between two looks; an object
in a bucket is complete as soon as it is listed. What has a job in the ledger is left alone,
whatever became of that job: only people start a failed or cancelled one again. So nothing has to
be remembered from one process to the next, and any number of them may watch the same place.

An object may be told of before a listing finds it. Then a second thread takes it; whichever of
the two comes first, it is one job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from intermission.backends.source_files import identify, signature
from intermission.backends.store.local import LocalStore
from intermission.composition.fleet import Fleet
from intermission.composition.locations import (
    Location,
    ObjectLocation,
    as_location,
    find_object,
    is_url,
    listed_source,
)
from intermission.engine.planning import make_job
from intermission.errors import (
    EmptyPlace,
    IntermissionError,
    LedgerError,
    SourceError,
    StoreError,
    StoreUnavailable,
)
from intermission.model import identity
from intermission.ports.clock import Clock
from intermission.ports.store import Store
from intermission.settings.watch_rules import WatchedPlace

PARTIAL = (".part", ".partial", ".crdownload", ".tmp", ".filepart", "~")
"""How the names of files end that somebody is still writing."""

PAUSES_S = (10.0, 60.0, 300.0, 900.0, 3600.0)
"""How long a file that could not be submitted is left alone: after the first time, the second..."""

Outcome = tuple[Location, str | IntermissionError]
"""A file, and the key of its job, or why it has none."""

Tell = Callable[[Location, str | IntermissionError], None]
"""Wants to know the outcomes. Several threads call it."""


@dataclass(slots=True)
class _File:
    """A version of a file that was there at the last look."""

    version: str
    is_settled: bool
    is_done: bool = False
    is_told: bool = False
    failures: int = 0
    outages: int = 0
    """How often the ledger or the store was away when it was to be submitted."""
    next_try_s: float = 0.0


class FolderWatch:
    """Looks at a place; what is new and complete becomes a job.

    Raises `UsageError` when the pipeline does not load or does not take the parameters.
    """

    def __init__(self, fleet: Fleet, wanted: WatchedPlace) -> None:
        self.place = wanted.place if is_url(wanted.place) else str(Path(wanted.place).expanduser())
        self._fleet = fleet
        self._wanted = wanted
        self._pipeline = fleet.app.catalog.add(wanted.pipeline)
        self._pipeline.bind(wanted.params)
        self._root = as_location(self.place)
        self._files: dict[Location, _File] = {}
        self._lock = threading.Lock()

    @property
    def clock(self) -> Clock:
        return self._fleet.app.clock

    @property
    def is_unsettled(self) -> bool:
        """Whether the last look found files that only another one can tell to be complete."""
        with self._lock:
            return any(not file.is_settled for file in self._files.values())

    @property
    def bucket(self) -> str:
        """The name of the bucket that is watched; empty where it is a folder."""
        root = self._root
        return root.bucket.partition("://")[2] if isinstance(root, ObjectLocation) else ""

    def look(self, is_stopped: Callable[[], bool] = lambda: False) -> Iterator[Outcome]:
        """Submit what is new; each file with its job, or with why it has none, told once.

        Raises when the place, its store or the ledger is away; the next look goes on from there.
        """
        self._list()
        with self._lock:
            due = [
                (place, file)
                for place, file in self._files.items()
                if file.is_settled and not file.is_done and not self._waits(file)
            ]
        # Should the ledger fail at one of them alone, the others have had their turn.
        due.sort(key=lambda one: one[1].outages)
        for place, file in due:
            if is_stopped():
                return
            if (outcome := self._take(place, file)) is not None:
                yield outcome

    def arrived(self, key: str) -> tuple[bool, Outcome | None]:
        """Submit an object that is said to be in the bucket, as a look would that found it.

        Whether nothing more is to be done about it, because it has a job, is gone or is not
        wanted here; and what to tell. Raises as `look` does.
        """
        if not isinstance(self._root, ObjectLocation) or key.endswith(PARTIAL):
            return True, None
        named = ObjectLocation(self._root.bucket, key)
        include = self._wanted.include or self._pipeline.accepts
        how = include, self._fleet.settings, self._pipeline.output
        try:
            found = find_object(self._root, key, *how)
        except StoreUnavailable:
            raise
        except StoreError as e:  # at this object alone, as far as anybody knows
            with self._lock:
                file = self._file(named)
                return False, None if self._waits(file) else self._failed(named, file, e)
        if found is None:
            return True, None
        with self._lock:
            file = self._file(found)
        if file.is_done or self._waits(file):
            return file.is_done, None
        outcome = self._take(found, file)
        return file.is_done, outcome

    def _file(self, place: ObjectLocation) -> _File:
        file = self._files.get(place)
        if file is None or file.version != place.version:
            self._files.pop(place, None)  # it has the old version in its key
            file = self._files[place] = _File(place.version, is_settled=True)
        return file

    def _waits(self, file: _File) -> bool:
        return self.clock.monotonic_s() < file.next_try_s

    def _list(self) -> None:
        found: dict[Location, _File] = {}
        for place, version in self._versions():
            file = self._files.get(place)
            if file is None or file.version != version:
                file = _File(version, is_settled=not isinstance(place, Path))
            else:
                file.is_settled = True
            found[place] = file
        with self._lock:
            self._files = found

    def _versions(self) -> Iterator[tuple[Location, str]]:
        try:
            found = self._fleet.app.sources([self.place], self._wanted.include, self._pipeline)
        except EmptyPlace:
            return
        for place in found.sources:
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

    def _take(self, place: Location, file: _File) -> Outcome | None:
        with self._lock:  # so that the other thread does not submit it as well
            if file.is_done:
                return None
            try:
                key = self._submit(place, file)
            except (LedgerError, StoreUnavailable):
                file.outages += 1
                raise  # the others would fare no better, and each would wait for it
            except IntermissionError as e:
                return self._failed(place, file, e)
        return None if key is None else (place, key)

    def _submit(self, place: Location, file: _File) -> str | None:
        """The key of the job of a file that had none."""
        if isinstance(place, ObjectLocation):
            source = listed_source(place)
        elif signature(place) == file.version:
            source = identify(place, self._memory(place))
        else:  # those before it may have taken hours: a file that changed meanwhile is not complete
            return None
        key, wanted = None, self._wanted
        params = self._fleet.app.params_of(self._pipeline, place, wanted.params)
        if not self._fleet.has_job(make_job(self._pipeline, source, params).key):
            key, _ = self._fleet.submit(
                self._pipeline, place, wanted.params, priority=wanted.priority, source=source
            )
        file.is_done = True
        return key

    def _failed(self, place: Location, file: _File, error: IntermissionError) -> Outcome | None:
        """Leave a file alone for a while; why, if it was not told."""
        file.failures += 1
        pause_s = PAUSES_S[min(file.failures, len(PAUSES_S)) - 1]
        file.next_try_s = self.clock.monotonic_s() + pause_s
        was_told, file.is_told = file.is_told, True
        return None if was_told else (place, error)

    def _memory(self, path: Path) -> Store:
        """What is remembered of a file, so that it is not hashed again at every start."""
        settings = self._fleet.settings
        if settings.server is None:
            return self._fleet.app.workspace(path).open_store()
        # Its workspace will be the server's, beside the upload.
        return LocalStore(settings.cache_dir.expanduser() / "watched" / identity(str(path))[:20])
