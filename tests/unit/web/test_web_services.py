"""What a server does by itself: each service fails once, is told, and works again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from web_jobs import Connect

from intermission.backends.events.sqs import SqsQueue
from intermission.composition.fleet import Fleet
from intermission.composition.uploads import Uploads
from intermission.services import alerting, queue_watch, retention, supervisor, watch_scheduler
from intermission.services.metrics import Metrics
from intermission.settings.watch_rules import WatchedPlace
from intermission.web.api.event_broadcaster import EventBroadcaster

DEADLINE_S = 60.0
QUEUE = "https://sqs.eu-central-1.amazonaws.com/1/media"

SERVICES: list[tuple[str, type, str, bool]] = [
    ("event stream", EventBroadcaster, "heard", True),
    ("metrics", Metrics, "heard", True),
    ("alerts for http://127.0.0.1:9", alerting.Follower, "step", True),
    ("watch of s3://media/in/", watch_scheduler.Watch, "_look", False),
    (f"queue {QUEUE}", queue_watch.QueueWatch, "_handle", False),
    ("retention", retention.Retention, "prune", False),
]


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.01)


@pytest.mark.parametrize(("name", "owner", "method", "is_essential"), SERVICES)
def test_a_service_that_raises_is_told_and_started_again(
    name: str,
    owner: type,
    method: str,
    is_essential: bool,
    fleet: Fleet,
    connect: Connect,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervisor, "PAUSE_S", 0.001)
    monkeypatch.setattr(SqsQueue, "receive", lambda *_: [])
    monkeypatch.setattr(queue_watch.QueueWatch, "_handle", lambda *_: 0.01)
    monkeypatch.setattr(watch_scheduler.Watch, "_look", lambda *_: None)
    is_broken = threading.Event()
    works: Callable[..., Any] = getattr(owner, method)

    def fragile(*given: Any) -> Any:
        if is_broken.is_set():
            raise ZeroDivisionError("a secret of the ledger")
        return works(*given)

    monkeypatch.setattr(owner, method, fragile)
    is_broken.set()
    watched = WatchedPlace(place="s3://media/in/", pipeline="transcribe", queue=QUEUE)
    settings: dict[str, Any] = {
        "webhook_urls": ("http://127.0.0.1:9/x",),
        "webhook_secret": SecretStr(f"whsec_{'A' * 32}"),
        "webhook_allow_private": "yes",
        "keep_jobs_s": 10.0,
        "watches": (watched,),
    }
    own = Fleet(fleet.settings.model_copy(update=settings))
    with ExitStack() as opened:
        services = [
            *alerting.alert_services(own, Uploads(own.settings), opened),
            *watch_scheduler.server_watches(own),
            *retention.retention_services(own),
        ]
        client = connect(settings, services=services)

        def told() -> dict[str, Any]:
            answer = client.get("/readyz").json()
            return next((one for one in answer.get("services", ()) if one["name"] == name), answer)

        if is_essential:
            until(lambda: client.get("/readyz").status_code == 503)
            assert name in told()["detail"]
            assert "secret" not in client.get("/readyz").text
        else:
            until(lambda: told()["error"])
            assert client.get("/readyz").status_code == 200
        is_broken.clear()
        until(lambda: client.get("/readyz").status_code == 200 and not told()["error"])
        assert told()["restarts"] >= 1
        until(lambda: client.get("/metrics").status_code == 200)
        numbers = client.get("/metrics").text
        assert f'intermission_service_up{{service="{name}"}} 1.0' in numbers
        assert f'intermission_service_restarts_total{{service="{name}"}} 0.0' not in numbers
