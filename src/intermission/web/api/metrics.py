"""Numbers for Prometheus over HTTP. A scrape costs no query: they were counted before."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from intermission.services.metrics import Metrics, ServiceMetrics
from intermission.services.supervisor import Supervisor
from intermission.web.problems import RETRY_AFTER_S, Problem, documented


def metrics_router(metrics: Metrics, supervisor: Supervisor) -> APIRouter:
    metrics.registry.register(ServiceMetrics(supervisor))
    router = APIRouter(tags=["operations"])

    @router.get(
        "/metrics",
        operation_id="metrics",
        response_class=Response,
        responses={200: {"description": "In Prometheus' format", "content": {"text/plain": {}}}}
        | documented(503),
    )
    def show() -> Response:
        """Show the server's numbers for Prometheus, once it has read the event log to its end."""
        if not metrics.is_complete:
            # Half of the numbers would look like a reset, and the rest like a burst.
            raise Problem(
                503,
                "The event log is not read yet",
                "the server has not counted the event log to its end.",
                remedy="Ask again in a moment.",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return router
