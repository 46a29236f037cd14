"""Those who use the fleet meanwhile: they submit jobs, cancel some, and collect garbage."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from chaos.commands import SECRET, Ended, ref, run_command
from chaos.fleet import Fleet
from chaos.journal import Journal
from chaos.schedule import LEASE_S, NEWER, Submission

GC_EVERY_S = 4.0
GIVE_UP_S = 300.0
"""How long a customer tries to submit: the server or the database may be away."""


@dataclass(frozen=True)
class Asked:
    """One job that was submitted: what its outputs must be is decided by these."""

    key: str
    pipeline: str
    release: int
    source: Path
    submission: int


@dataclass
class Customers:
    """Commands in threads of their own; what they asked for."""

    fleet: Fleet
    journal: Journal
    asked: dict[str, Asked] = field(default_factory=dict[str, Asked])
    cancelled: set[str] = field(default_factory=set[str])
    wrong: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="customer")
        self._pending: list[Future[None]] = []
        self._over = threading.Event()
        self._collector = threading.Thread(target=self._collect, name="gc", daemon=True)

    def begin(self) -> None:
        self._collector.start()

    def submit(self, submission: Submission) -> None:
        self._pending.append(self._pool.submit(self._submit, submission))

    def cancel(self, submission: Submission) -> None:
        self._pending.append(self._pool.submit(self._cancel, submission))

    def finish(self) -> None:
        """Wait for every command; the garbage is collected until `close`."""
        for pending in self._pending:
            pending.result()

    def close(self) -> None:
        self._over.set()
        if self._collector.is_alive():
            self._collector.join()
        self._pool.shutdown()

    def sources(self, submission: Submission) -> list[Path]:
        no = submission.no if submission.again is None else submission.again
        return [self.fleet.media / f"{no:04}-{n}.txt" for n in range(len(submission.texts))]

    def _command(self, release: int, over_http: bool, *arguments: object) -> Ended:
        env = self.fleet.clients[release]
        where = ["--ledger", self.fleet.database.url]
        if over_http:
            env = env | {"INTERMISSION_ADMIN_SECRET": SECRET}
            where = ["--server", self.fleet.url]
        return run_command(env, self.fleet.folder, *arguments, *where)

    def _submit(self, submission: Submission) -> None:
        sources = self.sources(submission)
        for path, text in zip(sources, submission.texts, strict=True):
            path.write_text(text)
        deadline_s = time.monotonic() + GIVE_UP_S
        while True:
            done = self._command(
                submission.release, submission.over_http,
                "submit", ref(submission.pipeline), *sources, "--json",
            )  # fmt: skip
            if done.code == 0:
                break
            self.journal.note("customer", f"submit ended with {done.code}: {done.err[-300:]}")
            if time.monotonic() > deadline_s:
                self.wrong.append(f"submission {submission.no} was never taken: {done.err[-300:]}")
                return
            time.sleep(1)
        for path, job in zip(sources, done.json["jobs"], strict=True):
            asked = Asked(job["job"], submission.pipeline, submission.release, path, submission.no)
            self.asked[asked.key] = asked
            how = "over HTTP" if submission.over_http else "to the ledger"
            what = f"{submission.pipeline} release {submission.release} over {path.name}"
            self.journal.note("customer", f"submitted {what}, {how}: {asked.key[:10]}")
            self.journal.count("jobs")

    def _cancel(self, submission: Submission) -> None:
        keys = [one.key for one in list(self.asked.values()) if one.submission == submission.no]
        for key in keys:
            done = self._command(NEWER, submission.over_http, "cancel", key)
            self.journal.note("customer", f"cancel {key[:10]} ended with {done.code} {done.err}")
            if done.code == 0:
                self.cancelled.add(key)
                self.journal.count("cancelled")

    def _collect(self) -> None:
        """`gc` with the shortest grace it takes, again and again."""
        env = self.fleet.clients[NEWER]
        while not self._over.wait(GC_EVERY_S):
            for place in (self.fleet.media, self.fleet.store):
                done = run_command(
                    env,
                    self.fleet.folder,
                    "gc",
                    place,
                    "--grace-s",
                    f"{LEASE_S:g}",
                    "--json",
                    "--ledger",
                    self.fleet.database.url,
                )
                if done.code != 0:
                    self.journal.note("gc", f"ended with {done.code}: {done.err[-300:]}")
                    self.journal.count("gc refused or failed")
                    continue
                swept = done.json["sources"]
                removed = sum(one["removed"] for one in swept)
                self.journal.count("gc")
                if removed:
                    self.journal.note("gc", f"removed {removed} files in {place.name}")
