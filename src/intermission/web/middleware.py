"""What is checked of every request before an endpoint sees it, and added to every answer.

It keeps web pages of strangers from using a server that listens on this machine alone: such a
server asks for no secret, and a browser on the machine can reach it. It bounds the bodies that
are read whole. Who may do what is decided elsewhere.
"""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from intermission.web.problems import Problem

BODY_MAX_BYTES = 1024 * 1024
"""Of a JSON body. Files are bounded where they are received."""

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


class Door:
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

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        try:
            self._refuse_strangers(scope)
            if scope["method"] not in _SAFE and not scope["path"].startswith(self._exempt):
                receive = await _bounded(Headers(scope=scope), receive)
        except Problem as e:
            await e.response()(scope, receive, dressed)
            return
        await self._app(scope, receive, dressed)

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


async def _bounded(headers: Headers, receive: Receive) -> Receive:
    """The body read whole, if it is as small as a document is."""
    declared = headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > BODY_MAX_BYTES:
        raise _too_large()
    body = bytearray()
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > BODY_MAX_BYTES:
            raise _too_large()
    handed = False

    async def again() -> Message:
        nonlocal handed
        if handed:
            return await receive()
        handed = True
        return {"type": "http.request", "body": bytes(body), "more_body": False}

    return again


def _too_large() -> Problem:
    return Problem(
        413,
        "The body is too large",
        f"a body has at most {BODY_MAX_BYTES} bytes.",
        remedy="Ask for less at once.",
    )
