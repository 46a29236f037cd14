"""Interruption notices: a spot machine is told of its own end, and the worker drains in time.

Owns the talk with the instance metadata service of EC2: version 2 alone, with its token, in a
thread beside the work, never through a proxy. A notice is a courtesy, and everything is right
without one. So whatever the service answers or leaves unanswered, this module must never fail
a run; and all it does about a notice is to ask for a drain.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from intermission.ports.clock import Clock
from intermission.settings import Settings

IMDS_URL = "http://169.254.169.254"
EVERY_S = 5.0
TIMEOUT_S = 1.0
TOKEN_TTL_S = 21_600
ANSWER_MAX_BYTES = 4096

BUDGET_MAX_S = 80.0
RESERVE_S = 40.0
"""Before the machine's end: 20 s to give back, sync and free the lock, and 20 s to be early."""

ACTIONS = ("terminate", "stop", "hibernate")
_ACTION_PATH = "/latest/meta-data/spot/instance-action"
_REBALANCE_PATH = "/latest/meta-data/events/recommendations/rebalance"
_TOKEN_HEADER = "X-aws-ec2-metadata-token"

Ask = Callable[[str, float], None]
"""Asks for a drain, with a reason and a budget in seconds."""

log = logging.getLogger(__name__)


@contextmanager
def watching(settings: Settings, clock: Clock, drain: Ask) -> Generator[None, None, None]:
    """Pass notices on while the block runs, where there is somebody to give any."""
    if not is_wanted(settings):
        yield
        return
    watch = NoticeWatch(settings, clock, drain)
    watch.start()
    try:
        yield
    finally:
        watch.stop()


def is_wanted(
    settings: Settings, environ: Mapping[str, str] = os.environ, machine: Path = Path("/sys")
) -> bool:
    """Whether to watch. What is not EC2 finds out by three small files, without any network."""
    if settings.interruption_notices != "auto":
        return settings.interruption_notices == "imds"
    if environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        return False
    return settings.imds_url is not None or _is_ec2(machine)


def _is_ec2(machine: Path) -> bool:
    signs = {
        "class/dmi/id/sys_vendor": "amazon ec2",
        "class/dmi/id/board_asset_tag": "i-",
        "hypervisor/uuid": "ec2",  # machines on Xen
    }
    for file, sign in signs.items():
        with suppress(OSError, ValueError):
            if (machine / file).read_text().lower().startswith(sign):
                return True
    return False


class NoticeWatch:
    """A thread that asks every five seconds, until there is nothing more to be told."""

    def __init__(self, settings: Settings, clock: Clock, drain: Ask) -> None:
        self._settings = settings
        self._clock = clock
        self._drain = drain
        self._metadata = Metadata(settings.imds_url or IMDS_URL, clock)
        self._advised = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notice-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the thread is gone: at once, or when its last question was answered."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        is_asking = True
        while is_asking and not self._stop.is_set():
            try:
                is_asking = self.tick()
            except Exception:  # a notice that is not asked for any more would be missed
                log.exception("the metadata service could not be asked; it is asked again")
            if is_asking:
                self._stop.wait(EVERY_S)

    def tick(self) -> bool:
        """Ask once; False when the end is known, and there is no more to ask."""
        said = self._metadata.get(_ACTION_PATH)
        action, at = said.get("action"), _time(said.get("time"))
        if action in ACTIONS and at is not None:
            left_s = at.timestamp() - self._clock.now_ms() / 1000
            budget_s = min(max(left_s - RESERVE_S, 0.0), BUDGET_MAX_S)
            self._drain(f"spot interruption: {action} at {at:%Y-%m-%dT%H:%M:%SZ}", budget_s)
            return False
        if not self._advised and not self._stop.is_set():
            self._advised = _time(self._metadata.get(_REBALANCE_PATH).get("noticeTime")) is not None
            if self._advised:
                self._rebalance()
        return True

    def _rebalance(self) -> None:
        """Advice without a date, which stays up: a worker started again gets it again."""
        if self._settings.on_rebalance == "drain":
            self._drain("spot rebalance recommendation", self._settings.drain_s)
        else:
            log.warning("this spot machine is likely to be interrupted soon; the run goes on")


class Metadata:
    """The metadata service. Used by one thread."""

    def __init__(self, url: str, clock: Clock) -> None:
        self._address = urlsplit(url).netloc
        self._clock = clock
        self._token = ""
        self._token_until_s = 0.0

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at a path; empty if there is none, no answer, or no sense in it."""
        status, body = self._get(path)
        if status not in (200, 404):
            self._token = ""  # it may have been the reason
        if status == 401:
            status, body = self._get(path)
        try:
            said = json.loads(body) if status == 200 else None
        except (ValueError, RecursionError):
            log.debug("%s: expected JSON, found %r", path, body)
            return {}
        return said if isinstance(said, dict) else {}

    def _get(self, path: str) -> tuple[int, bytes]:
        now_s = self._clock.monotonic_s()
        if not self._token or now_s >= self._token_until_s:
            asked = {f"{_TOKEN_HEADER}-ttl-seconds": str(TOKEN_TTL_S)}
            status, body = self._ask("PUT", "/latest/api/token", asked)
            self._token = body.decode("latin-1").strip() if status == 200 else ""
            self._token_until_s = now_s + 0.9 * TOKEN_TTL_S
        if not self._token:
            return 0, b""
        return self._ask("GET", path, {_TOKEN_HEADER: self._token})

    def _ask(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Status and body of an answer; 0 when none came."""
        from http.client import HTTPConnection, HTTPException  # slow to import

        connection = HTTPConnection(self._address, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(ANSWER_MAX_BYTES)
        except (OSError, HTTPException, ValueError, OverflowError) as e:
            log.debug("no answer from the metadata service: %r", e)
            return 0, b""
        finally:
            connection.close()


def _time(text: object) -> datetime | None:
    """A moment with its zone, in UTC."""
    try:
        at = datetime.fromisoformat(text) if isinstance(text, str) else None
        return None if at is None or at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
