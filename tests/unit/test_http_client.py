"""Calls to a server, without one."""

from __future__ import annotations

import gc
import weakref

import httpx
import pytest

from intermission.backends.http.client import LEDGER, Server
from intermission.errors import LedgerError


def _server(answer: httpx.Response | None = None) -> Server:
    server = Server("http://server", "key")
    transport = httpx.MockTransport(lambda _: answer or httpx.Response(200, content=b"yes" * 1000))
    server._client = httpx.Client(transport=transport, base_url=server.url)
    return server


def test_an_answer_goes_as_soon_as_it_is_read() -> None:
    """A worker makes thousands of calls between two looks for cycles of garbage."""
    seen: list[weakref.ref[httpx.Response]] = []

    def receive(response: httpx.Response) -> bytes:
        seen.append(weakref.ref(response))
        return response.read()

    server = _server()
    gc.disable()
    try:
        for _ in range(3):
            body = server.call("asking", "POST", "/", receive, faults=LEDGER, body=b"x" * 1000)
            assert body == b"yes" * 1000
        assert [one() for one in seen[:-1]] == [None, None]
    finally:
        gc.enable()


def test_a_refusal_is_told_after_its_answer_was_read() -> None:
    with pytest.raises(LedgerError, match="404"):
        _server(httpx.Response(404)).call("asking", "GET", "/", lambda _: None, faults=LEDGER)
