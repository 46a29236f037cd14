"""Sending one message to one URL, signed as Standard Webhooks asks.

A message goes to an address that was checked, never to one that a name resolves to later; no
redirect is followed and no proxy asked. What a receiver answers is read up to a limit and never
kept or logged: it decides by its status alone. When to send again is not decided here.

Written by hand, because HTTP clients connect to whatever a name resolves to and have no deadline
for a whole exchange; and the signature of Standard Webhooks is one HMAC.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import http.client
import re
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import SplitResult, urlsplit

from intermission import __version__
from intermission.errors import UsageError
from intermission.ports.clock import Clock

TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 3.0
"""For each address, so that one which swallows everything leaves time for the next."""
ANSWER_MAX_BYTES = 64 * 1024
RETRY_AFTER_MAX_S = 3600.0
SECRET_PREFIX = "whsec_"
GONE = 410

_ASCII = re.compile(r"[!-~]+")
# What is set aside for special purposes. Written out, because what `ipaddress` says of some of
# these differs between patch releases of Python. Of IPv6 only what is global unicast counts; in
# there, tunnels that carry any IPv4 address, and prefixes for protocols and documents.
_SPECIAL = [
    ip_network(one)
    for one in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3"),
        *("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),
    )
]
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_METADATA = [
    *(IPv4Address("169.254.169.254"), IPv4Address("168.63.129.16")),
    *(IPv4Address("100.100.100.200"), IPv4Address("192.0.0.192"), IPv6Address("fd00:ec2::254")),
]
"""Where clouds tell a machine its credentials; one of them is a public address."""

Addresses = Sequence[tuple[socket.AddressFamily, Any]]
Resolve = Callable[[str, int], Addresses]


_LATER = frozenset({408, 425, 429})
"""Of the client errors, those that ask for another try."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a try ended. `said` is for the log: it has nothing of what the receiver wrote."""

    status: int | None
    said: str
    wait_s: float = 0.0
    """How long the receiver asks to be left alone."""

    @property
    def delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def refused(self) -> bool:
        """The receiver is there and does not want this message, now or later."""
        return self.status is not None and 400 <= self.status < 500 and self.status not in _LATER


def resolve(host: str, port: int) -> Addresses:
    """The addresses of a host, each with its family, as a socket takes them."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, address) for family, _, _, _, address in found]


class Hook:
    """One receiver. One thread uses it at a time."""

    def __init__(
        self,
        url: str,
        secret: bytes,
        *,
        clock: Clock,
        allow_private: bool = False,
        resolve: Resolve = resolve,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        parts, self._port = _checked(url)
        self._host = parts.hostname or ""
        self._is_tls = parts.scheme == "https"
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._host_header = parts.netloc
        self._secret = secret
        self._clock = clock
        self._allow_private = allow_private
        self._resolve = resolve
        self._tls = tls
        self.name = f"{parts.scheme}://{parts.netloc}"
        """For people and logs: the path of a URL is often a secret."""
        self._deadline = _Deadline()

    def abort(self) -> None:
        """For any thread: end the try that is under way."""
        self._deadline.end()

    def send(self, id: str, body: bytes) -> Answer:
        """Try once. Takes no longer than the time-out, from the first address on."""
        try:
            addresses = self._resolve(self._host, self._port)
        except (OSError, UnicodeError) as e:
            return Answer(None, f"its name cannot be resolved ({_reason(e)})")
        for _, address in addresses:
            if not is_allowed(address[0], allow_private=self._allow_private):
                return Answer(
                    None,
                    f"{address[0]} is not a public address, and nothing is sent there unless "
                    "webhook_allow_private is yes",
                )
        self._deadline = deadline = _Deadline()
        timer = threading.Timer(TIMEOUT_S, deadline.end)
        timer.daemon = True
        timer.start()
        try:
            return self._exchange(deadline, addresses, id, body)
        except (OSError, http.client.HTTPException, ValueError) as e:
            if deadline.passed:
                return Answer(None, f"it did not answer within {TIMEOUT_S:g} s")
            return Answer(None, f"it did not answer ({_reason(e)})")
        finally:
            timer.cancel()

    def _exchange(self, deadline: _Deadline, addresses: Addresses, id: str, body: bytes) -> Answer:
        connection = http.client.HTTPConnection(self._host, self._port)
        connection.auto_open = 0  # it is connected here, or not at all
        connection.sock = _connected(deadline, addresses)
        try:
            if self._is_tls:
                context = self._tls or ssl.create_default_context()
                connection.sock = tls = context.wrap_socket(
                    connection.sock, server_hostname=self._host, do_handshake_on_connect=False
                )
                deadline.ends(tls)
                tls.do_handshake()
            connection.request("POST", self._target, body, self._headers(id, body))
            response = connection.getresponse()
            if deadline.passed:  # what looks like the end of its headers is the end of our patience
                raise TimeoutError
            with suppress(OSError, http.client.HTTPException):  # the status has said it all
                response.read(ANSWER_MAX_BYTES)
            wait_s = _retry_after_s(response.headers.get("Retry-After", ""))
            return Answer(response.status, f"it answered {response.status}", wait_s)
        finally:
            connection.close()

    def _headers(self, id: str, body: bytes) -> dict[str, str]:
        timestamp = str(self._clock.now_ms() // 1000)
        return {
            "Host": self._host_header,
            "Content-Type": "application/json",
            "User-Agent": f"intermission/{__version__}",
            "Connection": "close",
            "webhook-id": id,
            "webhook-timestamp": timestamp,
            "webhook-signature": signature(self._secret, id, timestamp, body),
        }


def signature(secret: bytes, id: str, timestamp: str, body: bytes) -> str:
    digest = hmac.new(secret, f"{id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


def secret_bytes(text: str) -> bytes:
    """The key in `whsec_...`. Raises `UsageError` for anything else."""
    try:
        if not text.startswith(SECRET_PREFIX):
            raise ValueError
        key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
        if not 24 <= len(key) <= 64:
            raise ValueError
    except (ValueError, binascii.Error):
        raise UsageError(
            "webhook_secret is not whsec_ and the base64 of 24 to 64 bytes.",
            remedy='Make one: echo "whsec_$(openssl rand -base64 32)"',
        ) from None
    return key


def is_allowed(address: str, *, allow_private: bool) -> bool:
    """Whether something may be sent to an address. Some never get anything, private or not."""
    found = ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    plain = mapped or found
    if plain in _METADATA or plain.is_multicast or plain.is_unspecified:
        return False
    if allow_private:
        return True
    return mapped is None and _is_public(found)


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    if isinstance(address, IPv6Address):
        if address in _NAT64:  # how a network without IPv4 reaches it
            return is_allowed(str(IPv4Address(address.packed[-4:])), allow_private=False)
        if address not in _GLOBAL_UNICAST:
            return False
    return not any(address in network for network in _SPECIAL)


class _Deadline:
    """Ends a socket when the time is up: a receiver that sends a byte now and then beats any
    time-out for single reads."""

    def __init__(self) -> None:
        self.passed = False
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def ends(self, one: socket.socket) -> None:
        with self._lock:
            self._socket = one
            if self.passed:
                raise TimeoutError

    def end(self) -> None:
        with self._lock:
            self.passed = True
            if self._socket is not None:
                with suppress(OSError):  # not even connected
                    # The plain call: a TLS socket's own would change what its reader looks at.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _connected(deadline: _Deadline, addresses: Addresses) -> socket.socket:
    """A connection to the first of these addresses that takes one."""
    failed = OSError("it has no address")
    for family, address in addresses:
        found = socket.socket(family, socket.SOCK_STREAM)
        try:
            deadline.ends(found)
            found.settimeout(CONNECT_TIMEOUT_S)
            found.connect(address)
            found.settimeout(TIMEOUT_S)
            return found
        except OSError as e:
            found.close()
            failed = e
    raise failed


def _checked(url: str) -> tuple[SplitResult, int]:
    remedy = "Write it as https://host/path, without a user, a password or a fragment."
    try:
        if not _ASCII.fullmatch(url):
            raise ValueError("it has characters that must be percent-encoded")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise ValueError("it is neither http nor https")
        if not parts.hostname:
            raise ValueError("it has no host")
        if "@" in parts.netloc or parts.fragment:
            raise ValueError("it has a part that is not sent")
        return parts, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as e:
        raise UsageError(f"webhook_urls: {url!r} cannot be used: {e}.", remedy=remedy) from None


def _retry_after_s(text: str) -> float:
    try:
        return min(max(0.0, float(text)), RETRY_AFTER_MAX_S)
    except ValueError:
        return 0.0


def _reason(e: Exception) -> str:
    return (getattr(e, "strerror", None) or type(e).__name__).lower()
