"""Clients that never finish what they say, and a server that goes on answering the others."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import httpx
import pytest
from command_line import Cli

FILES_MAX = 1024
"""How many files the server may have open, as is usual."""
UNFINISHED = 1100
HEAD = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"


@contextmanager
def served(cli: Cli) -> Iterator[tuple[str, int]]:
    """The address of a server that may open a thousand files and no more."""
    process = subprocess.Popen(
        [
            *("sh", "-c", f'ulimit -n {FILES_MAX} && exec "$@"', "sh"),
            *(sys.executable, "-m", "intermission", "serve", "--port", "0"),
        ],
        cwd=cli.folder,
        env=cli.env,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("listening on http://"), line
        host, port = line.strip().removeprefix("listening on http://").split(":")
        yield host, int(port)
    finally:
        process.terminate()
        process.communicate(timeout=180)


def test_unfinished_headers_keep_nobody_else_out(cli: Cli) -> None:
    with served(cli) as address, ExitStack() as opened:
        for _ in range(UNFINISHED):
            one = opened.enter_context(socket.create_connection(address, timeout=180))
            one.sendall(HEAD)
        url = f"http://{address[0]}:{address[1]}/livez"
        assert httpx.get(url, timeout=180).status_code == 200
        assert httpx.get(url.replace("livez", "readyz"), timeout=180).status_code == 200


def test_headers_that_do_not_end_are_given_up(cli: Cli) -> None:
    with served(cli) as address, socket.create_connection(address, timeout=180) as slow:
        slow.sendall(HEAD)
        with slow.makefile("rb") as answer:
            assert answer.readline() == b"HTTP/1.1 408 Request Timeout\r\n"
            assert answer.read().endswith(b"\r\n\r\n"), "the connection is closed"


def test_more_headers_than_anybody_needs_are_refused(cli: Cli) -> None:
    with served(cli) as address, socket.create_connection(address, timeout=180) as one:
        many = b"".join(b"a%d: b\r\n" % number for number in range(10_000))
        one.sendall(HEAD + many + b"\r\n")
        with one.makefile("rb") as answer:
            assert answer.readline().split()[1] in (b"400", b"431")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/api/v1/jobs", 413), ("PUT", "/api/v1/sources/.hidden", 422)],
)
@pytest.mark.parametrize("connection", ["keep-alive", "close"])
def test_a_plain_client_reads_why_its_body_is_refused(
    cli: Cli, method: str, path: str, status: int, connection: str
) -> None:
    """`http.client` sends everything before it reads anything."""
    with (
        served(cli) as address,
        closing(http.client.HTTPConnection(*address, timeout=180)) as client,
    ):
        for body, headers in (
            (bytes(32 * 2**20), {}),
            ((bytes(2**16) for _ in range(512)), {"Transfer-Encoding": "chunked"}),
        ):
            client.request(
                method,
                path,
                body,
                {"Connection": connection, **headers},
                encode_chunked=bool(headers),
            )
            answer = client.getresponse()
            assert (answer.status, b"remedy" in answer.read()) == (status, True)
