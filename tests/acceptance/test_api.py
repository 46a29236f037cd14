"""The API as its own description has it: what it says is what it answers, and nothing else."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
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
from schemathesis.specs.openapi.checks import positive_data_acceptance

from intermission.app.fleet import Fleet
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
    "listGroups": "GET /api/v1/jobs/{key}/groups",
    "listEvents": "GET /api/v1/events",
    "listJobEvents": "GET /api/v1/jobs/{key}/events",
    "streamEvents": "GET /api/v1/events/stream",
    "uploadSource": "PUT /api/v1/sources/{name}",
    "listOutputs": "GET /api/v1/jobs/{key}/outputs",
    "getOutput": "GET /api/v1/jobs/{key}/outputs/{name}",
    "listWorkers": "GET /api/v1/workers",
    "livez": "GET /livez",
    "readyz": "GET /readyz",
    "metrics": "GET /metrics",
}
# A well-formed request may still name a pipeline nobody offers, and is refused for that.
NOT_FORMAL = [positive_data_acceptance]
TAKE_NOTHING = ("listWorkers", "livez", "readyz", "metrics")
EXAMPLES = 8


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
def app(fleet: Fleet) -> FastAPI:
    return create_app(fleet)


@pytest.fixture(scope="module")
def operations(app: FastAPI) -> dict[str, Any]:
    schema: Any = schemathesis.openapi.from_asgi("/api/v1/openapi.json", app)
    found = [result.ok() for result in schema.get_all_operations()]
    return {operation.definition.raw["operationId"]: operation for operation in found}


@pytest.fixture(scope="module")
def client(app: Any) -> Iterator[Any]:
    """One server for all cases, started once."""
    with asgi.get_client(app) as client:
        client.headers["Authorization"] = f"Bearer {SECRET}"
        yield client


# A stream has no end; how it begins, goes on and resumes is tested with a real server.
@pytest.mark.parametrize("name", [name for name in NAMES if name != "streamEvents"])
@pytest.mark.parametrize("mode", list(GenerationMode))
def test_every_answer_is_described(
    operations: dict[str, Any], client: Any, name: str, mode: GenerationMode
) -> None:
    if mode is GenerationMode.NEGATIVE and name in TAKE_NOTHING:
        return

    @given(operations[name].as_strategy(generation_mode=mode))
    @bounds(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    def ask(case: schemathesis.Case) -> None:
        key = case.path_parameters.get("key")
        if isinstance(key, str) and re.fullmatch("[0-9a-f]{40}", key):
            case.path_parameters["key"] = KEY
        case.call_and_validate(session=client, excluded_checks=NOT_FORMAL)

    ask()


def test_the_committed_description_is_current(fleet: Fleet) -> None:
    found = json.dumps(create_app(fleet).openapi(), indent=2, ensure_ascii=False) + "\n"
    if os.environ.get("UPDATE_OPENAPI"):
        DESCRIPTION.write_text(found)
    assert found == DESCRIPTION.read_text(), "run this test with UPDATE_OPENAPI=1, and look"


def test_operations_keep_their_names(fleet: Fleet) -> None:
    paths = create_app(fleet).openapi()["paths"]
    named = {
        operation["operationId"]: f"{method.upper()} {path}"
        for path, item in paths.items()
        for method, operation in item.items()
    }
    assert named == NAMES
