"""The catalog: which pipelines this process may run, and where their code is.

A pipeline is in it because an installed package offers it, because the settings of this process
name it, or because it was given on the command line. A job, a receipt, a row of a ledger, a
request or a message names a pipeline by its name and its graph, and never where code is: nobody
can make this process import anything.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from intermission.errors import NoPipeline, PipelineError
from intermission.model import Job
from intermission.pipeline.graph import Pipeline
from intermission.pipeline.load import is_reference, load_all, load_one, names

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """A pipeline, and the reference by which another process of this machine loads it."""

    ref: str
    pipeline: Pipeline


class Catalog:
    """Pipelines by name. `refs` are those of the settings; nothing is loaded before it is asked."""

    def __init__(self, refs: Sequence[str] = ()) -> None:
        self._refs = refs
        self._given: dict[str, Entry] = {}

    def add(self, ref: str) -> Pipeline:
        """The pipeline that somebody gives on a command line: by name, or where its code is."""
        if not is_reference(ref):
            return self.named(ref).pipeline
        at, pipeline = load_one(ref)
        self._given[pipeline.name] = Entry(at, pipeline)
        return pipeline

    def named(self, name: str) -> Entry:
        """The pipeline of this name. Raises `NoPipeline`; never takes a name for a file."""
        if (entry := self._given.get(name) or self._named_in_settings.get(name)) is not None:
            return entry
        if name in names() and (entry := self._installed_as(name)).pipeline.name == name:
            return entry
        if (entry := self._installed.get(name)) is not None:
            return entry
        raise NoPipeline(
            f"there is no pipeline {name!r} here.",
            remedy=f"There is: {', '.join(self.names()) or 'none'}. Add one with --pipeline "
            "path/to/file.py:name or the setting pipelines.",
        )

    def of(self, job: Job) -> Entry:
        """The code of a job. Raises `NoPipeline` where it is missing or has another graph."""
        entry = self.named(job.pipeline)
        if entry.pipeline.code != job.code:
            raise NoPipeline(
                f"expected {job.code}, found {entry.pipeline.code}: the pipeline here is another "
                "version.",
                remedy="Run it where that version is, or run the pipeline anew.",
            )
        return entry

    def names(self) -> list[str]:
        """The pipelines on offer; of installed ones, as their packages call them."""
        return sorted({*names(), *self._named_in_settings, *self._given})

    @property
    def codes(self) -> frozenset[str]:
        """What a worker with this catalog can run, as jobs ask for it."""
        known = self._installed | self._named_in_settings | self._given
        return frozenset(entry.pipeline.code for entry in known.values())

    @cached_property
    def _named_in_settings(self) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for ref in self._refs:
            for at, pipeline in load_all(ref).items():
                known = found.setdefault(pipeline.name, Entry(at, pipeline))
                if known.pipeline is not pipeline:
                    raise PipelineError(
                        f"{known.ref} and {at} are both called {pipeline.name!r}.",
                        remedy="Leave one out of the setting pipelines, or rename it.",
                    )
        return found

    @cached_property
    def _installed(self) -> dict[str, Entry]:
        """By their own names. One that lacks a package here is left out, and said."""
        found: dict[str, Entry] = {}
        for name in names():
            try:
                entry = self._installed_as(name)
            except PipelineError as e:
                log.warning("the installed pipeline %s is left out: %s", name, e)
            else:
                found.setdefault(entry.pipeline.name, entry)
        return found

    def _installed_as(self, name: str) -> Entry:
        return Entry(*load_one(name))
