"""A server whose database goes away and comes back: it says so meanwhile, and goes on."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator

import httpx
import pytest
from command_line import PIPELINES, Cli, until

from servers.postgres import PostgresServer

SOON_S = 45.0


@pytest.fixture
def database(postgres_server: Callable[..., PostgresServer]) -> PostgresServer:
    return postgres_server()


@pytest.fixture
def url(cli: Cli, database: PostgresServer) -> Iterator[str]:
    """The address of a server over the database."""
    serve = ["serve", "--port", 0, "--ledger", database.url, "--pipeline", f"{PIPELINES}:letters"]
    process: subprocess.Popen[str] = cli.start(*serve)
    assert process.stderr is not None
    line = next(line for line in process.stderr if "listening on" in line)
    yield line.split()[-1]
    process.send_signal(signal.SIGTERM)
    assert process.wait(SOON_S) == 0


class Watching(threading.Thread):
    """Follows the event stream as a browser does: whenever it ends, on from the last number."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.url = url
        self.seen: list[int] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            last = {"Last-Event-ID": str(self.seen[-1])} if self.seen else {}
            address = f"{self.url}/api/v1/events/stream?after=0"
            try:
                with httpx.stream("GET", address, headers=last, timeout=SOON_S) as stream:
                    for line in stream.iter_lines():
                        if line.startswith("id: "):
                            self.seen.append(int(line.removeprefix("id: ")))
                        if self.over.is_set():
                            return
            except httpx.TransportError:
                self.over.wait(0.1)


def submitted(url: str, text: bytes) -> str:
    api = httpx.Client(base_url=f"{url}/api/v1", timeout=SOON_S)
    with api:
        name = f"{text.decode()}.txt"
        source = api.put(f"/sources/{name}", content=text).json()["id"]
        answer = api.post("/jobs", json={"pipeline": "letters", "source": source})
        assert answer.status_code == 202, answer.text
        return answer.json()["job"]


def test_a_server_outlives_its_database(url: str, database: PostgresServer) -> None:
    first = submitted(url, b"first")
    watching = Watching(url)
    watching.start()
    until(lambda: watching.seen)
    database.stop(signal.SIGKILL)
    for path in ("/api/v1/jobs", "/readyz"):
        away = httpx.get(url + path, timeout=SOON_S)
        assert away.status_code == 503, path
        assert int(away.headers["retry-after"]) > 0
        assert away.headers["content-type"] == "application/problem+json"
        assert away.json()["detail"]
        assert away.json()["remedy"]
        assert "postgres@" not in away.text, "where it is, and as whom, is nobody's business"
    assert httpx.get(f"{url}/livez").status_code == 200
    database.start()
    until(lambda: httpx.get(f"{url}/readyz", timeout=SOON_S).status_code == 200)
    second = submitted(url, b"second")
    jobs = httpx.get(f"{url}/api/v1/jobs", timeout=SOON_S).json()["jobs"]
    assert [job["job"] for job in jobs] == [second, first]
    events = httpx.get(f"{url}/api/v1/events", timeout=SOON_S).json()["events"]
    until(lambda: len(watching.seen) >= len(events))
    assert watching.seen == [event["seq"] for event in events], "all of them, once, in order"
    watching.over.set()
