"""The API as its own description has it: what it says is what it answers, and nothing else."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given
from hypothesis import settings as bounds
from pydantic import SecretStr
from schemathesis import GenerationMode
from schemathesis.python import asgi
from schemathesis.specs.openapi.checks import (
    positive_data_acceptance,
)

from intermission import __version__
from intermission.composition.fleet import Fleet
from intermission.composition.registries import open_registry
from intermission.model import identity
from intermission.settings import Settings
from intermission.testing.jobs import chunks, completion, fan_job, submit
from intermission.web.app import create_app

DESCRIPTION = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"
KEY = identity("described")
SECRET = "swordfish"
NAMES = {
    "submitJob": "POST /api/v1/jobs",
    "listJobs": "GET /api/v1/jobs",
    "getJob": "GET /api/v1/jobs/{key}",
    "cancelJob": "POST /api/v1/jobs/{key}/cancel",
    "retryJob": "POST /api/v1/jobs/{key}/retry",
    "listTasks": "GET /api/v1/jobs/{key}/tasks",
    "getTask": "GET /api/v1/jobs/{key}/tasks/{id}",
    "findTask": "GET /api/v1/jobs/{key}/task",
    "whyTask": "GET /api/v1/jobs/{key}/task/why",
    "listWaiting": "GET /api/v1/jobs/{key}/waiting",
    "taskLog": "GET /api/v1/jobs/{key}/task/log",
    "pruneJobs": "POST /api/v1/prune",
    "listGroups": "GET /api/v1/jobs/{key}/groups",
    "listEvents": "GET /api/v1/events",
    "listJobEvents": "GET /api/v1/jobs/{key}/events",
    "lastEvent": "GET /api/v1/events/last",
    "streamEvents": "GET /api/v1/events/stream",
    "uploadSource": "PUT /api/v1/sources/{name}",
    "listOutputs": "GET /api/v1/jobs/{key}/outputs",
    "getOutput": "GET /api/v1/jobs/{key}/outputs/{name}",
    "listLimits": "GET /api/v1/limits",
    "setLimit": "PUT /api/v1/limits/{name}",
    "removeLimit": "DELETE /api/v1/limits/{name}",
    "pause": "POST /api/v1/limits/{name}/pause",
    "resume": "POST /api/v1/limits/{name}/resume",
    "listFailures": "GET /api/v1/failures",
    "retryFailures": "POST /api/v1/failures/retry",
    "listWorkers": "GET /api/v1/workers",
    "registerWorker": "POST /api/v1/workers",
    "rotateWorkerKey": "POST /api/v1/workers/{id}/rotate",
    "revokeWorker": "DELETE /api/v1/workers/{id}",
    "finishDeferred": "POST /api/v1/deferred/{token}",
    "uploadDeferredFile": "PUT /api/v1/uploads/deferred",
    "livez": "GET /livez",
    "readyz": "GET /readyz",
    "metrics": "GET /metrics",
}
WORKER_NAMES = {
    "workerHeartbeat": "POST /api/v1/worker/heartbeat",
    "workerClaim": "POST /api/v1/worker/claim",
    "workerRenew": "POST /api/v1/worker/renew",
    "workerComplete": "POST /api/v1/worker/complete",
    "workerFail": "POST /api/v1/worker/fail",
    "workerRelease": "POST /api/v1/worker/release",
    "workerCancelled": "POST /api/v1/worker/cancelled",
    "workerDefer": "POST /api/v1/worker/defer",
    "workerUpload": "POST /api/v1/worker/upload",
    "workerInputs": "GET /api/v1/worker/inputs",
    "workerInputFile": "GET /api/v1/worker/file",
    "workerSource": "GET /api/v1/worker/source",
    "workerPutArtifact": "PUT /api/v1/worker/artifacts/{name}",
}
# A well-formed request may still name a pipeline nobody offers, and is refused for that.
NOT_FORMAL = [positive_data_acceptance]
TAKE_NOTHING = ("lastEvent", "listWorkers", "listLimits", "livez", "readyz", "metrics")
EXAMPLES = 8
WORKER_EXAMPLES = 4


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    folder = tmp_path_factory.mktemp("described")
    settings = Settings(
        ledger=str(folder / "ledger.sqlite"),
        store=str(folder / "store"),
        admin_secret=SecretStr(SECRET),
    )
    fleet = Fleet(settings)
    made = submit(fleet.ledger, fan_job(key=KEY))
    (lease,) = fleet.ledger.claim("w", 1, lease_ttl_s=600)
    fleet.ledger.complete([completion(fleet.ledger, made, lease, chunks(3))])
    return fleet


@pytest.fixture(scope="module")
def app(fleet: Fleet) -> Iterator[FastAPI]:
    with closing(open_registry(fleet.settings)) as registry:
        yield create_app(fleet, registry)


@pytest.fixture(scope="module")
def operations(app: FastAPI) -> dict[str, Any]:
    schema: Any = schemathesis.openapi.from_asgi("/api/v1/openapi.json", app)
    found = [result.ok() for result in schema.get_all_operations()]
    return {operation.definition.raw["operationId"]: operation for operation in found}


@pytest.fixture(scope="module")
def client(app: Any) -> Iterator[Any]:
    """One server for all cases, started once; it is called by the administrator."""
    with asgi.get_client(app) as client:
        client.headers["Authorization"] = f"Bearer {SECRET}"
        yield client


@pytest.fixture(scope="module")
def worker(app: Any, client: Any) -> Iterator[Any]:
    """The same server, called by a worker."""
    asked = {"name": "described", "version": __version__}
    key = client.post("/api/v1/workers", json=asked).json()["key"]
    caller = asgi.get_client(app)  # of the server that is running
    caller.headers["Authorization"] = f"Bearer {key}"
    yield caller
    caller.close()


def check(operation: Any, mode: GenerationMode, session: Any, examples: int) -> None:
    """Whatever is sent, the answer is one that the description has."""

    @given(operation.as_strategy(generation_mode=mode))
    @bounds(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    def ask(case: schemathesis.Case) -> None:
        for name in ("key", "job"):
            if re.fullmatch("[0-9a-f]{40}", str(case.path_parameters.get(name))):
                case.path_parameters[name] = KEY
        if mode is GenerationMode.POSITIVE and "job" in case.path_parameters:
            case.path_parameters["job"] = KEY
        case.call_and_validate(session=session, excluded_checks=NOT_FORMAL)

    ask()


# A stream has no end; how it begins, goes on and resumes is tested with a real server.
@pytest.mark.parametrize("name", [name for name in NAMES if name != "streamEvents"])
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_answer_is_described(
    operations: dict[str, Any], client: Any, name: str, mode: GenerationMode
) -> None:
    if mode is GenerationMode.POSITIVE or name not in TAKE_NOTHING:
        check(operations[name], mode, client, EXAMPLES)


@pytest.mark.parametrize("name", WORKER_NAMES)
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_answer_to_a_worker_is_described(
    operations: dict[str, Any], worker: Any, name: str, mode: GenerationMode
) -> None:
    check(operations[name], mode, worker, WORKER_EXAMPLES)


def test_the_committed_description_is_current(app: FastAPI) -> None:
    found = json.dumps(app.openapi(), indent=2, ensure_ascii=False) + "\n"
    if os.environ.get("UPDATE_OPENAPI"):
        DESCRIPTION.write_text(found)
    assert found == DESCRIPTION.read_text(), "run this test with UPDATE_OPENAPI=1, and look"


def test_operations_keep_their_names(app: FastAPI) -> None:
    paths = app.openapi()["paths"]
    named = {
        operation["operationId"]: f"{method.upper()} {path}"
        for path, item in paths.items()
        for method, operation in item.items()
    }
    assert named == NAMES | WORKER_NAMES
