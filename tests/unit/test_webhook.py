"""Sending: what is signed, where it goes, and where it never goes."""

from __future__ import annotations

import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from intermission.errors import UsageError
from intermission.services import webhook
from intermission.services.webhook import Hook, Resolve, is_allowed, secret_bytes, signature
from intermission.testing.clock import FakeClock
from servers.webhook import KEY, SECRET, Receiver, receiving

BODY = b'{"type":"task.exhausted"}'
PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "get-alerts.md").read_text()

PRIVATE = [
    *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255"),
    *("192.168.1.1", "169.254.0.1", "169.254.169.254", "100.64.0.1", "100.100.100.200"),
    *("192.0.0.192", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1"),
    *("239.255.255.250", "240.0.0.1", "255.255.255.255", "168.63.129.16"),
    *("::", "::1", "fe80::1", "fe80::1%lo", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "2001:db8::1"),
    *("2002:7f00:1::1", "2002:808:808::1", "2001:0:7f00:1::1", "64:ff9b::7f00:1"),
    *("64:ff9b::a9fe:a9fe", "64:ff9b::a83f:8110", "64:ff9b:1::1", "100::1", "4000::1"),
]
PUBLIC = ["8.8.8.8", "1.1.1.1", "172.32.0.1", "2606:4700:4700::1111", "64:ff9b::808:808"]
NEVER = ["169.254.169.254", "168.63.129.16", "::ffff:169.254.169.254", "224.0.0.1", "0.0.0.0", "::"]


def resolving(*addresses: str, port: int = 9) -> Resolve:
    def resolve(_: str, given: int) -> list[tuple[socket.AddressFamily, Any]]:
        found: list[tuple[socket.AddressFamily, Any]] = []
        for one in addresses:
            family = socket.AF_INET6 if ":" in one else socket.AF_INET
            found.append((family, (one, given or port)))
        return found

    return resolve


def hook(url: str, **options: Any) -> Hook:
    return Hook(url, KEY, **{"clock": FakeClock(), "allow_private": True, **options})


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def test_the_signature_is_the_one_of_the_specification() -> None:
    key = secret_bytes("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signed = signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert secret_bytes(SECRET) == KEY


@pytest.mark.parametrize("secret", ["", "abc", "whsec_", "whsec_!!!", "whsec_c2hvcnQ=", SECRET[1:]])
def test_a_secret_that_is_none_is_refused_with_a_way_to_make_one(secret: str) -> None:
    with pytest.raises(UsageError, match="openssl rand") as caught:
        secret_bytes(secret)
    assert secret == "whsec_" or not secret or secret not in str(caught.value)


def test_a_message_arrives_signed_and_whole(receiver: Receiver) -> None:
    answer = hook(f"{receiver.url}?to=me").send("alert_1", BODY)
    assert answer.delivered
    (received,) = receiver.received
    assert received.document == {"type": "task.exhausted"}
    assert received.path == "/hook?to=me"
    assert received.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert received.headers["webhook-timestamp"] == str(FakeClock().now_ms() // 1000)
    assert received.headers["content-type"] == "application/json"


def test_the_page_shows_how_to_check_it() -> None:
    (block,) = re.findall(r"^<!-- file: receive.py -->\n```python\n(.*?)^```", PAGE, re.M | re.S)
    page: dict[str, Any] = {}
    exec(block, page)
    timestamp = str(int(time.time()))

    def is_genuine(body: bytes, signed_at: str = timestamp) -> bool:
        headers = {
            "webhook-id": "alert_1",
            "webhook-timestamp": signed_at,
            "webhook-signature": signature(KEY, "alert_1", signed_at, BODY),
        }
        return page["is_genuine"](SECRET, headers, body)

    assert is_genuine(BODY)
    assert not is_genuine(BODY + b" ")
    assert not is_genuine(BODY, "1614265330")


def test_another_secret_does_not_pass(receiver: Receiver) -> None:
    other = Hook(receiver.url, bytes(32), clock=FakeClock(), allow_private=True)
    assert other.send("alert_1", BODY).status == 401
    assert (receiver.forged, receiver.received) == (1, [])


@pytest.mark.parametrize("address", PRIVATE)
def test_what_is_not_public_gets_nothing(address: str) -> None:
    assert not is_allowed(address, allow_private=False)


@pytest.mark.parametrize("address", PUBLIC)
def test_what_is_public_does(address: str) -> None:
    assert is_allowed(address, allow_private=False)


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_may_be_allowed_but_some_never_are(address: str) -> None:
    named = address.partition("%")[0]
    multicast = named.startswith(("224", "239", "ff0"))
    credentials = named in ("100.100.100.200", "192.0.0.192", "fd00:ec2::254")
    allowed = is_allowed(address, allow_private=True)
    assert allowed != (named in NEVER or multicast or credentials)


@pytest.mark.parametrize("address", NEVER)
def test_some_never_are(address: str) -> None:
    assert not is_allowed(address, allow_private=True)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "0177.0.0.1", "[::ffff:127.0.0.1]"]
)
def test_no_way_of_writing_loopback_gets_through(host: str, receiver: Receiver) -> None:
    answer = hook(f"http://{host}:{receiver.port}/", allow_private=False).send("alert_1", BODY)
    assert (answer.status, receiver.received) == (None, [])
    assert "webhook_allow_private" in answer.said


def test_one_private_address_among_public_ones_spoils_the_host() -> None:
    found = resolving("8.8.8.8", "10.0.0.1")
    answer = hook("http://mixed.example/", allow_private=False, resolve=found).send("a", BODY)
    assert "10.0.0.1 is not a public address" in answer.said


def test_it_connects_to_the_address_that_was_checked_and_asks_only_once(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, Any]]:
        asked.append(host)
        return [(socket.AF_INET, ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("it asked again"))
    url = f"http://hooks.example:{receiver.port}/x"
    assert hook(url, resolve=resolve).send("alert_1", BODY).delivered
    assert asked == ["hooks.example"]
    assert receiver.received[0].headers["host"] == f"hooks.example:{receiver.port}"


def test_the_next_address_is_tried(receiver: Receiver) -> None:
    url = f"http://hooks.example:{receiver.port}/"
    assert hook(url, resolve=resolving("127.0.0.9", "127.0.0.1")).send("alert_1", BODY).delivered


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(status: int, receiver: Receiver) -> None:
    receiver.troubles.append((status, {"Location": f"{receiver.url}/elsewhere"}))
    answer = hook(receiver.url).send("alert_1", BODY)
    assert (answer.status, answer.delivered, receiver.received) == (status, False, [])


def test_no_proxy_of_the_environment_is_asked(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert hook(receiver.url).send("alert_1", BODY).delivered


def test_how_long_to_wait_is_told_within_limits(receiver: Receiver) -> None:
    for asked, waited_s in (("7", 7), ("1e9", 3600), ("-3", 0), ("nan", 0), ("tomorrow", 0)):
        receiver.troubles.append((503, {"Retry-After": asked}))
        assert hook(receiver.url).send("alert_1", BODY).wait_s == waited_s


def test_an_endless_answer_is_not_read_to_its_end(receiver: Receiver) -> None:
    receiver.answer = bytes(50_000_000)
    answer = hook(receiver.url).send("alert_1", BODY)
    assert answer.delivered
    assert len(answer.said) < 100


def serving_bytes(reply: Callable[[socket.socket], None]) -> tuple[socket.socket, str]:
    """A listener that answers one connection in its own way."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            reply(connection)

    threading.Thread(target=answer, daemon=True).start()
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}/"


def drip(connection: socket.socket) -> None:
    """A header that never ends, a byte at a time: every single read is in time."""
    try:
        connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        while not threading.Event().wait(0.02):
            connection.sendall(b"x")
    except OSError:  # the other side had enough
        return


def test_dripping_does_not_outlast_the_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "TIMEOUT_S", 0.3)
    listener, url = serving_bytes(drip)
    with listener:
        answer = hook(url).send("alert_1", BODY)
    assert (answer.status, "within 0.3 s" in answer.said) == (None, True)


def test_a_try_can_be_ended_from_outside() -> None:
    asked, ended = threading.Event(), threading.Event()

    def keep_silent(_: socket.socket) -> None:
        asked.set()
        ended.wait(30)

    listener, url = serving_bytes(keep_silent)
    with listener:
        one = hook(url)

        def abort() -> None:
            asked.wait(30)
            one.abort()

        threading.Thread(target=abort).start()
        assert one.send("alert_1", BODY).status is None
    ended.set()


@pytest.mark.parametrize(
    "reply", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"\r\n"]
)
def test_an_answer_that_is_none_is_a_failure(reply: bytes) -> None:
    listener, url = serving_bytes(lambda connection: connection.sendall(reply))
    with listener:
        answer = hook(url).send("alert_1", BODY)
    assert (answer.status, answer.delivered) == (None, False)


def test_nobody_there_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert hook(f"http://127.0.0.1:{port}/").send("alert_1", BODY).status is None


def test_a_name_that_is_none_is_a_failure() -> None:
    def resolve(host: str, port: int) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    answer = hook("http://nowhere.invalid/", resolve=resolve).send("alert_1", BODY)
    assert "cannot be resolved" in answer.said


@pytest.mark.parametrize(
    "url",
    [
        *("", "hook", "ftp://host/x", "file:///etc/passwd", "gopher://host/", "http://", "//host"),
        *("http://user:pw@host/", "https://host/#part", "http://host:99999/", "http://host:x/"),
        *("http://host/a b", "http://hö.example/", "http://host/\r\nX: y", "http://[::1/"),
    ],
)
def test_a_url_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(UsageError, match="webhook_urls"):
        hook(url)


def test_logs_have_no_path(receiver: Receiver) -> None:
    assert hook("https://hooks.example/services/T0/secret").name == "https://hooks.example"


@pytest.fixture
def certificate(require: Callable[[str], str], tmp_path: Path) -> tuple[Path, Path]:
    key, own = tmp_path / "key.pem", tmp_path / "own.pem"
    command = [require("openssl"), "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"]
    command += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=hooks.example"]
    command += ["-addext", "subjectAltName=DNS:hooks.example", "-keyout", key, "-out", own]
    subprocess.run(command, check=True, capture_output=True, timeout=180)
    return own, key


def test_a_certificate_must_be_of_the_host_and_of_somebody_known(
    certificate: tuple[Path, Path],
) -> None:
    asked: list[str | None] = []
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(*certificate)
    served.sni_callback = lambda _, name, __: asked.append(name)
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    with receiving(tls=served) as receiver:
        where = {"resolve": resolving("127.0.0.1")}
        known = f"https://hooks.example:{receiver.port}/x"
        assert hook(known, tls=trusting, **where).send("alert_1", BODY).delivered
        assert asked == ["hooks.example"]
        other = f"https://other.example:{receiver.port}/x"
        assert hook(other, tls=trusting, **where).send("alert_1", BODY).status is None
        assert hook(known, **where).send("alert_1", BODY).status is None
        assert len(receiver.received) == 1
