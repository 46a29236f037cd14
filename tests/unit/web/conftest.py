"""A fleet of its own for each test: a SQLite ledger and a store in an empty folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from web_jobs import Connect

from intermission.composition.fleet import Fleet
from intermission.settings import Settings
from intermission.web.app import create_app


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(Settings(ledger=str(tmp_path / "ledger.sqlite"), store=str(tmp_path / "store")))


@pytest.fixture
def connect(fleet: Fleet) -> Iterator[Connect]:
    """`connect(...)` is a client of a running server with these options and settings."""
    opened: list[TestClient] = []

    def start(settings: dict[str, Any] | None = None, **options: Any) -> TestClient:
        used = Fleet(fleet.settings.model_copy(update=settings or {}))
        client = TestClient(
            create_app(used, **options), base_url="http://localhost", raise_server_exceptions=False
        )
        opened.append(client.__enter__())
        return client

    yield start
    for client in opened:
        client.__exit__(None, None, None)
