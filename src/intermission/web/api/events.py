"""Events over HTTP: by cursor, or as a stream that tells them as they happen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Header, Query
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from intermission.composition.event_log import last_event
from intermission.composition.fleet import Fleet
from intermission.model import Event
from intermission.operations.documents import EventDocument, EventPage, LastEvent
from intermission.services.event_log_reader import PAGE
from intermission.web.api.event_broadcaster import SEND_S, EventBroadcaster, Watcher, frame
from intermission.web.api.jobs import JobKey, job_row
from intermission.web.api.paging import NUMBER_MAX, Limit
from intermission.web.problems import Problem, documented

RETRY_MS = 1000
MEDIA_TYPE = "text/event-stream"

After = Annotated[int, Query(ge=0, le=NUMBER_MAX, description="Only events with a higher number.")]

_LOG = logging.getLogger(__name__)


def events_router(fleet: Fleet, hub: EventBroadcaster) -> APIRouter:
    router = APIRouter(tags=["events"])

    @router.get("/events", operation_id="listEvents")
    def events(after: After = 0, limit: Limit = 100) -> EventPage:
        """List the events of every job in the order they were recorded."""
        found = fleet.ledger.events(after, limit=limit + 1)
        return _page(found[:limit], after, more=len(found) > limit)

    @router.get("/events/last", operation_id="lastEvent")
    def last() -> LastEvent:
        """Show the number of the newest event, to follow from there."""
        return LastEvent(seq=last_event(fleet.ledger))

    @router.get("/jobs/{key}/events", operation_id="listJobEvents", responses=documented(404))
    def job_events(key: JobKey, after: After = 0, limit: Limit = 100) -> EventPage:
        """List the events of one job in the order they were recorded."""
        job_row(fleet, key)
        found = fleet.ledger.events(after, job=key, limit=limit + 1)
        return _page(found[:limit], after, more=len(found) > limit)

    @router.get(
        "/events/stream",
        operation_id="streamEvents",
        response_class=Response,
        responses={200: {"description": "Events as they happen", "content": {MEDIA_TYPE: {}}}}
        | documented(404),
    )
    def stream(
        job: Annotated[
            str | None, Query(pattern=r"^[0-9a-f]{40}$", description="Of this job alone.")
        ] = None,
        after: Annotated[int | None, Query(ge=0, le=NUMBER_MAX)] = None,
        last_event_id: Annotated[str | None, Header(pattern=r"^[0-9]{1,18}$")] = None,
    ) -> Response:
        """Follow events as server-sent events.

        It begins after the event in `Last-Event-ID`, else after `after`, else with what happens
        from now on. Each event's id is its number, so whoever is cut off resumes without loss.
        """
        if job is not None:
            job_row(fleet, job)
        start = int(last_event_id) if last_event_id is not None else after
        if start is None:
            start = last_event(fleet.ledger)
        return EventStream(fleet, hub, job, start)

    return router


def _page(events: Sequence[Event], after: int, *, more: bool) -> EventPage:
    following = max([after, *(event.seq for event in events)])
    return EventPage(
        events=[EventDocument.of(event) for event in events], next=following, more=more
    )


class EventStream(Response):
    """First what the ledger has by now, then what the hub tells."""

    def __init__(
        self, fleet: Fleet, hub: EventBroadcaster, job_key: str | None, after: int
    ) -> None:
        self._fleet = fleet
        self._hub = hub
        self._job_key = job_key
        self._after = after
        self.background = None
        self.init_headers(
            {
                "content-type": MEDIA_TYPE,
                "cache-control": "no-store",
                "x-accel-buffering": "no",  # a proxy that collects would hold events back
            }
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = self._hub.join(self._job_key, self._after)
        if watcher is None:
            raise Problem(
                503,
                "The event log is not read yet",
                "the server has not found the end of the event log.",
                remedy="Ask again in a moment.",
                headers={"Retry-After": "1"},
            )
        listener = asyncio.create_task(_until_gone(receive, watcher))
        try:
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            await self._catch_up(watcher, send)
            await watcher.over.wait()
            async with asyncio.timeout(SEND_S):
                await watcher.drain()
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            # Sending the end would wait as well: the connection is closed without one.
            _LOG.info("a watcher took nothing for %g s and is let go", SEND_S)
        finally:
            listener.cancel()
            self._hub.leave(watcher)

    async def _catch_up(self, watcher: Watcher, send: Send) -> None:
        """Send what the ledger has by now; the hub sends the rest."""
        frames, seen = f"retry: {RETRY_MS}\n\n".encode(), watcher.after
        while True:
            if frames:
                async with asyncio.timeout(SEND_S):
                    await send({"type": "http.response.body", "body": frames, "more_body": True})
            if seen >= watcher.since or watcher.over.is_set():
                break
            seen, frames = await to_thread.run_sync(self._read, seen, watcher.since)
        async with asyncio.timeout(SEND_S):
            await watcher.go_live(send)

    def _read(self, after: int, upto: int) -> tuple[int, bytes]:
        """A page of the log: how far it goes, and what is in it for this watcher."""
        events = self._fleet.ledger.events(after, job=self._job_key, limit=PAGE)
        frames = b"".join(frame(event) for event in events if event.seq <= upto)
        return (events[-1].seq if events else upto), frames


async def _until_gone(receive: Receive, watcher: Watcher) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    watcher.over.set()
