"""What is left when everything has ended, as the server, the disk and the steps tell it."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.fleet import Fleet

ENDED = frozenset({"done", "failed", "cancelled"})


@dataclass
class Execution:
    """One execution of a step, as the step itself wrote it down."""

    task: str
    attempt: str
    step: str
    host: str
    began: float
    ended: float | None = None
    error: str | None = None

    @property
    def fence(self) -> int:
        """The claim it was of: a server names the attempts of its workers' receipts itself."""
        return int(self.attempt.partition("-")[0])


@dataclass
class Facts:
    jobs: dict[str, dict[str, Any]]
    tasks: dict[str, list[dict[str, Any]]]
    """By job."""
    events: list[dict[str, Any]]
    outputs: dict[str, dict[str, str]]
    """By job: the hash of each file that the server hands out, by its name."""
    receipts: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """By task key, with the `path` of each."""
    executions: dict[str, list[Execution]] = field(default_factory=dict[str, list[Execution]])
    """By task key, in the order in which they began."""


def jobs_of(fleet: Fleet, **query: Any) -> list[dict[str, Any]]:
    """Every job of the ledger, page by page."""
    return _pages(fleet, "/jobs", "jobs", **query)


def gather(fleet: Fleet) -> Facts:
    """Ask the server for everything, and read what lies on the disk."""
    jobs = {job["job"]: job for job in jobs_of(fleet)}
    facts = Facts(
        jobs=jobs,
        tasks={key: _pages(fleet, f"/jobs/{key}/tasks", "tasks") for key in jobs},
        events=_events(fleet),
        outputs={key: _outputs(fleet, key) for key, job in jobs.items() if job["state"] == "done"},
    )
    for root in (fleet.media, fleet.store):
        for path in root.rglob("receipts/*/*.json"):
            receipt = json.loads(path.read_text())
            facts.receipts[receipt["task_key"]] = {**receipt, "path": path}
    facts.executions = executions(fleet.folder / "executions.jsonl")
    return facts


def executions(path: Path) -> dict[str, list[Execution]]:
    """What the steps wrote down, by task."""
    found: dict[tuple[str, str], Execution] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        said = json.loads(line)
        name = said["task"], said["attempt"]
        if said["what"] == "began":
            found[name] = Execution(*name, said["step"], said["host"], said["at"])
        else:
            found[name].ended, found[name].error = said["at"], said.get("error")
    by_task: dict[str, list[Execution]] = defaultdict(list)
    for one in sorted(found.values(), key=lambda one: one.began):
        by_task[one.task].append(one)
    return by_task


def _pages(fleet: Fleet, path: str, name: str, **query: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        more = {} if cursor is None else {"cursor": cursor}
        page = fleet.ask(path, limit=1000, **query, **more).json()
        rows += page[name]
        cursor = page["next"]
        if cursor is None:
            return rows


def _events(fleet: Fleet) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    after = 0
    while True:
        page = fleet.ask("/events", after=after).json()
        rows += page["events"]
        if not page["more"]:
            return rows
        after = page["next"]


def _outputs(fleet: Fleet, key: str) -> dict[str, str]:
    listed = fleet.ask(f"/jobs/{key}/outputs").json()["outputs"]
    return {
        one["name"]: hashlib.sha256(
            fleet.ask(f"/jobs/{key}/outputs/{one['name']}").content
        ).hexdigest()
        for one in listed
    }
