"""What is checked of every request before an endpoint sees it, and added to every answer.

It keeps web pages of strangers from using a server that listens on this machine alone: such a
server asks for no secret, and a browser on the machine can reach it. It bounds headers, the bodies
that are read whole, and how long a client may be silent in the middle of one. Who may do what is
decided elsewhere.
"""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from intermission.web.problems import Problem

BODY_MAX_BYTES = 1024 * 1024
"""Of a JSON body. Files are bounded where they are received."""

HEADERS_MAX = 100
HEADERS_MAX_BYTES = 32 * 1024
BODY_S = 60.0
"""How long a JSON body may take, and how long a client may be silent while it sends a file."""
DISCARD_S = 30.0
DISCARD_SILENCE_S = 5.0
"""How long the rest of a refused body is read: while a client sends, it reads no answer."""

_SAFE = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing, and whose bodies nobody reads."""
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}


def is_loopback(host: str) -> bool:
    """Whether a host's name can only mean this machine."""
    name = host.strip("[]").lower()
    if name == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


class Middleware:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, *, is_open: bool, exempt: tuple[str, ...]) -> None:
        """`is_open`: nobody is asked for a secret. Below `exempt`, bodies are bounded there."""
        self._app = app
        self._is_open = is_open
        self._exempt = exempt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_document = scope["method"] not in _SAFE and not scope["path"].startswith(self._exempt)
        body = _Body(Headers(scope=scope), receive, is_document=is_document)
        answer = _Answer(body, send)
        try:
            _refuse_long_headers(scope)
            self._refuse_strangers(scope)
            if is_document and body.declared_bytes > BODY_MAX_BYTES:
                raise _too_large()
        except Problem as e:
            await e.response()(scope, body.receive, answer.send)
            return
        await self._app(scope, body.receive, answer.send)

    def _refuse_strangers(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._is_open and not is_loopback(_name(host)):
            # A stranger's page may have had its own name resolve to this machine.
            raise Problem(
                403,
                "The host is not this machine",
                "a server without a secret answers only to the name of its own machine.",
                remedy="Call it localhost, or give the server a secret with admin_secret.",
            )
        origin = headers.get("origin")
        is_foreign = headers.get("sec-fetch-site") == "cross-site" or (
            origin is not None and urlsplit(origin).netloc != host
        )
        if is_foreign and scope["method"] not in _SAFE:
            raise Problem(
                403,
                "The request comes from another site",
                "a web page of another site may not change anything here.",
                remedy="Call the API from a program of your own.",
            )


def _name(host: str) -> str:
    """A Host header without its port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


class _Body:
    """The body of a request as it comes in. A document is bounded here, a file elsewhere."""

    def __init__(self, headers: Headers, receive: Receive, *, is_document: bool) -> None:
        declared = headers.get("content-length", "0")
        self.declared_bytes = int(declared[:20]) if declared.isdecimal() else 0
        self.is_unread = self.declared_bytes > 0 or "transfer-encoding" in headers
        """Whether the client may still be sending, or about to."""
        self.is_held_back = headers.get("expect", "").lower() == "100-continue"
        """Whether the client waits to be asked for it."""
        self._receive = receive
        self._is_document = is_document
        self._read_bytes = 0
        self._until_s = asyncio.get_running_loop().time() + BODY_S

    async def receive(self) -> Message:
        """What came. Raises `Problem` for a document that is too large, or takes too long."""
        if not self.is_unread:
            return await self._receive()
        now_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(self._until_s if self._is_document else now_s + BODY_S):
                message = await self._next()
        except TimeoutError:
            if not self._is_document:
                return {"type": "http.disconnect"}
            raise Problem(
                408,
                "The body took too long",
                f"expected all of it within {BODY_S:g} s.",
                remedy="Send it again, over a faster connection.",
            ) from None
        self._read_bytes += len(message.get("body", b""))
        if self._is_document and self._read_bytes > BODY_MAX_BYTES:
            raise _too_large()
        return message

    async def _next(self) -> Message:
        self.is_held_back = False
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self.is_unread = False
        return message

    async def discard(self) -> None:
        """Read what is still sent, so that the client comes to read the answer.

        Closing a connection with unread bytes would reset it, and the answer would be lost.
        """
        try:
            async with asyncio.timeout(DISCARD_S):
                while self.is_unread and not self.is_held_back:
                    async with asyncio.timeout(DISCARD_SILENCE_S):
                        await self._next()
        except TimeoutError:
            return


class _Answer:
    """An answer as it goes out."""

    def __init__(self, body: _Body, send: Send) -> None:
        self._body = body
        self._send = send

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store")
            if self._body.is_unread:
                headers["connection"] = "close"
        elif self._body.is_unread and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._body.discard()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)


def _refuse_long_headers(scope: Scope) -> None:
    count = len(scope["headers"])
    size_bytes = sum(len(name) + len(value) for name, value in scope["headers"])
    if count > HEADERS_MAX or size_bytes > HEADERS_MAX_BYTES:
        raise Problem(
            431,
            "The headers are too large",
            f"expected at most {HEADERS_MAX} headers with {HEADERS_MAX_BYTES} bytes, found "
            f"{count} with {size_bytes}.",
            remedy="Send fewer headers.",
        )


def _too_large() -> Problem:
    return Problem(
        413,
        "The body is too large",
        f"a body has at most {BODY_MAX_BYTES} bytes.",
        remedy="Ask for less at once.",
    )
