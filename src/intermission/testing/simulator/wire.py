"""A wire: one process's way to a store or a ledger, on which every call is a fault point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_SILENT = frozenset({"close", "uri", "local_path", "presign"})
"""What reaches nobody: neither a pause nor a fault."""


class Wire:
    """Stands in for a `Store` or a `Ledger`: a pause before each call, faults around it."""

    def __init__(
        self,
        name: str,
        call: Callable[..., Any],
        pause: Callable[[str], None],
        suffer: Callable[[str, str], None],
    ) -> None:
        self._name = name
        self._call = call
        self._pause = pause
        self._suffer = suffer

    def __getattr__(self, method: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            if method in _SILENT:
                return self._call(method, *args, **options)
            self._pause(f"{self._name}.{method} {_brief(*args)}")
            self._suffer(self._name, "before")
            result = self._call(method, *args, **options)
            self._suffer(self._name, "after")
            return result

        return call


def _brief(*args: Any) -> str:
    """The first argument, without what differs from run to run."""
    if not args or not isinstance(args[0], str):
        return ""
    kind, _, rest = args[0].partition("/")
    return kind if kind == "quarantine" else f"{kind}/{rest[:16]}"
