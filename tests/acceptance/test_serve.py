"""The real server as a process: zero configuration, live events, an end that keeps promises."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from command_line import PIPELINES, Cli, in_sentence, until

WATCHERS = 20
SECRET = "open sesame"

TRAVERSALS = [
    *("..", ".", "../x", "../../../../etc/passwd", "/etc/passwd", "//etc/passwd", "a/../../x"),
    *("%2e%2e", "%2e%2e/x", "..%2f..%2fx", "%2e%2e%2fx", "%2fetc%2fpasswd", "..%5cx", "a%5cb"),
    *("a%00b", "%00", "%0a", "a%0d%0ab", "~%2fx", ".hidden", "-rf", "%c0%ae%c0%ae%2fx", "%ff"),
    *(quote("\u202egpj.exe"), "x" * 300),
]


class Served:
    """A running `intermission serve`, and how to talk to it."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url
        self.client = httpx.Client(base_url=f"{url}/api/v1", timeout=20)

    def raw(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """A request whose path no library tidies up."""
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=20)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


Serve = Callable[..., Served]


@pytest.fixture
def serve(cli: Cli) -> Iterator[Serve]:
    started: list[Served] = []

    def start(*args: object, env: dict[str, str] | None = None) -> Served:
        offered = (f"{PIPELINES}:letters", f"{PIPELINES}:gated")
        options = [word for ref in offered for word in ("--pipeline", ref)]
        process = cli.start("serve", "--port", "0", *options, *args, env=env)
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("listening on "):
                started.append(Served(process, line.removeprefix("listening on ").strip()))
                return started[-1]
        raise AssertionError("it never listened")

    yield start
    for one in started:
        one.client.close()


def work(cli: Cli) -> subprocess.Popen[str]:
    """A worker beside the server, connected to the same ledger."""
    return cli.start("worker", "--ledger", "intermission-data/ledger.sqlite")


def submitted(served: Served, pipeline: str, text: str = "abcdef") -> str:
    client = served.client
    name = f"{hashlib.sha256(text.encode()).hexdigest()[:8]}.txt"
    source = client.put(f"/sources/{name}", content=text.encode()).json()["id"]
    answer = client.post("/jobs", json={"pipeline": pipeline, "source": source})
    assert answer.status_code == 202, answer.text
    return answer.json()["job"]


def state(served: Served, key: str) -> str:
    return served.client.get(f"/jobs/{key}").json()["state"]


def recorded(served: Served, key: str) -> list[Any]:
    events = served.client.get(f"/jobs/{key}/events", params={"limit": 1000}).json()
    assert not events["more"]
    return events["events"]


async def events_of(response: httpx.Response) -> AsyncIterator[tuple[int, Any]]:
    """The events of a stream, each with its id."""
    number = 0
    async for line in response.aiter_lines():
        name, _, value = line.partition(": ")
        if name == "id":
            number = int(value)
        elif name == "data":
            yield number, json.loads(value)


async def watch(url: str, key: str, cut_after: int) -> list[Any]:
    """Everything of a job from its beginning to its end, cut off after every so many events."""
    seen: list[Any] = []
    params = {"job": key, "after": 0}
    headers: dict[str, str] = {}
    async with httpx.AsyncClient(timeout=30) as client:
        while True:
            stream = client.stream(
                "GET", f"{url}/api/v1/events/stream", params=params, headers=headers
            )
            async with stream as response:
                assert response.headers["content-type"] == "text/event-stream"
                came = 0
                async for number, event in events_of(response):
                    seen.append(event)
                    headers = {"Last-Event-ID": str(number)}
                    if event["event"] == "job" and event["now"] == "done":
                        return seen
                    came += 1
                    if came == cut_after:
                        break


def test_from_an_upload_to_its_output_without_any_configuration(cli: Cli, serve: Serve) -> None:
    served = serve()
    key = submitted(served, "letters")
    worker = work(cli)
    until(lambda: state(served, key) == "done")
    (output,) = served.client.get(f"/jobs/{key}/outputs").json()["outputs"]
    answer = served.client.get(f"/jobs/{key}/outputs/{output['name']}")
    assert answer.text == "AB!CD!EF!"
    assert hashlib.sha256(answer.content).hexdigest() == output["sha256"]
    part = served.client.get(
        f"/jobs/{key}/outputs/{output['name']}", headers={"Range": "bytes=3-5"}
    )
    assert (part.status_code, part.text) == (206, "CD!")
    tasks = served.client.get(f"/jobs/{key}/tasks").json()["tasks"]
    assert {task["state"] for task in tasks} == {"done"}
    metrics = f"{served.url}/metrics"
    counted = 'intermission_tasks_total{outcome="done",pipeline="letters",step="shout"} 3.0'
    until(lambda: counted in httpx.get(metrics).text)
    ended = 'intermission_jobs{pipeline="letters",state="done"} 1.0'
    until(lambda: ended in httpx.get(metrics).text)
    assert (cli.folder / "intermission-data" / "ledger.sqlite").exists()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(20) == 0
    assert served.stop() == 0


def test_twenty_watchers_see_the_same_in_order_whatever_is_cut(cli: Cli, serve: Serve) -> None:
    served = serve()
    key = submitted(served, "gated", "abcdefghijklmnopqrst")

    async def scenario() -> list[list[Any]]:
        # Some are never cut off, one after every event, and the others in between.
        cuts = [n if n % 4 else 10_000 for n in range(WATCHERS)]
        watching = [asyncio.create_task(watch(served.url, key, cut)) for cut in cuts]
        work(cli)
        await asyncio.to_thread(cli.wait_for_call, "waiting")
        cli.open_gate()
        return await asyncio.wait_for(asyncio.gather(*watching), 45)

    seen = asyncio.run(scenario())
    expected = recorded(served, key)
    assert expected[-1]["now"] == "done"
    assert [event["seq"] for event in expected] == sorted({event["seq"] for event in expected})
    for one in seen:
        assert one == expected


def test_a_stream_begins_with_what_happens_from_now_on(cli: Cli, serve: Serve) -> None:
    served = serve()
    first = submitted(served, "letters", "first")

    async def scenario() -> Any:
        async with (
            httpx.AsyncClient(timeout=20) as client,
            client.stream("GET", f"{served.url}/api/v1/events/stream") as response,
        ):
            await asyncio.to_thread(submitted, served, "letters", "second")
            async for _, event in events_of(response):
                return event

    assert asyncio.run(scenario())["job"] != first


def test_a_signal_ends_streams_and_disturbs_no_work(cli: Cli, serve: Serve) -> None:
    served = serve()
    key = submitted(served, "gated")
    work(cli)
    cli.wait_for_call("waiting")
    with served.client.stream("GET", "/events/stream", params={"after": 0}) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "retry: 1000"
        assert served.stop() == 0
        assert any(line.startswith("data: ") for line in lines), "what was known is told"
    again = serve()
    assert state(again, key) == "running"
    cli.open_gate()
    until(lambda: state(again, key) == "done")
    leased = [event["task"] for event in recorded(again, key) if event["now"] == "leased"]
    assert len(leased) == len(set(leased)), "nothing ran twice"


def test_no_path_leads_anywhere_else(cli: Cli, serve: Serve) -> None:
    served = serve()
    key = submitted(served, "letters")

    def files() -> list[str]:
        # Not what SQLite keeps beside its database while it is open.
        found = (path for path in cli.folder.rglob("*") if path.is_file())
        return sorted(str(path) for path in found if "ledger.sqlite" not in path.name)

    before = files()
    for name in TRAVERSALS:
        for method, path in (
            ("PUT", f"/api/v1/sources/{name}"),
            ("GET", f"/api/v1/jobs/{key}/outputs/{name}"),
        ):
            status, body = served.raw(method, path, b"x" if method == "PUT" else b"")
            assert 400 <= status < 500, (method, name, status)
            assert json.loads(body)["detail"], (method, name)
    assert files() == before


def test_a_cut_upload_leaves_nothing(cli: Cli, serve: Serve) -> None:
    served = serve()
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        head = f"PUT /api/v1/sources/cut.bin HTTP/1.1\r\nHost: {host}\r\nContent-Length: 9999999"
        connection.sendall(head.encode() + b"\r\n\r\n" + bytes(3_000_000))
        store = cli.folder / "intermission-data" / "store"
        until(lambda: list(store.rglob("upload-*")))
    until(lambda: not list(store.rglob("upload-*")))
    assert served.client.put("/sources/cut.bin", content=b"whole").status_code == 201


def test_a_root_lets_files_of_this_machine_be_sources(cli: Cli, serve: Serve) -> None:
    source = cli.source("media/a.txt")
    served = serve("--root", "media")
    body = {"pipeline": "letters", "source": str(source)}
    assert served.client.post("/jobs", json=body).status_code == 202
    body["source"] = str(cli.source("b.txt"))
    refused = served.client.post("/jobs", json=body)
    assert refused.status_code == 403
    assert "--root" in refused.json()["remedy"]


def test_with_a_secret_it_may_listen_everywhere(cli: Cli, serve: Serve) -> None:
    served = serve("--host", "0.0.0.0", env={"INTERMISSION_ADMIN_SECRET": SECRET})
    port = served.url.rpartition(":")[2]
    url = f"http://127.0.0.1:{port}"
    assert httpx.get(f"{url}/api/v1/jobs").status_code == 401
    for secret, status in (("wrong", 401), (SECRET, 200)):
        headers = {"Authorization": f"Bearer {secret}"}
        assert httpx.get(f"{url}/api/v1/jobs", headers=headers).status_code == status
    assert httpx.get(f"{url}/livez").status_code == 200


def test_a_server_uses_no_server(cli: Cli, serve: Serve) -> None:
    """The environment of a machine may name one for the commands that are given there."""
    served = serve(env={"INTERMISSION_SERVER": "http://127.0.0.1:9"})
    key = submitted(served, "letters")
    assert state(served, key) == "pending"


def test_what_keeps_a_server_from_starting_is_one_sentence(cli: Cli) -> None:
    refused = cli("serve", "--host", "0.0.0.0", code=2)
    in_sentence(refused.err, "other machines", "admin_secret")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = cli("serve", "--port", taken.getsockname()[1], code=4)
    in_sentence(busy.err, "cannot listen", "--port")
    (cli.folder / "ledger.sqlite").write_text("no ledger at all, but more than a hundred bytes" * 9)
    damaged = cli("serve", "--port", "0", "--ledger", "ledger.sqlite", code=4)
    in_sentence(damaged.err, "ledger.sqlite")
    unknown = cli("serve", "--port", "0", "--pipeline", "nothing.py:x", code=2)
    in_sentence(unknown.err, "nothing.py")


def test_help_loads_nothing_of_the_server() -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from intermission.cli import app\n"
        "assert CliRunner().invoke(app, ['serve', '--help']).exit_code == 0\n"
        "print({'fastapi', 'uvicorn', 'prometheus_client', 'httpx'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=180
    )
    assert done.stdout.strip() == "set()"
