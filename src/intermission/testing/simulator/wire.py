"""A wire: one process's way to a store or a ledger, on which every call is a fault point."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from intermission.errors import IntermissionError

_SILENT = frozenset({"uri", "local_path", "presign"})
"""What reaches nobody: neither a pause nor a fault."""

_LOCKED = frozenset({"fetch"})
"""What a process does under a lock of its machine: others would wait for ever."""


@dataclass
class Cut:
    """Calls over a wire fail, before or after they took effect: so many, or until a time."""

    error: type[IntermissionError]
    is_late: bool = False
    """The call takes effect, and its answer is lost."""
    calls: float = math.inf
    until_s: float = math.inf

    def strikes(self, now_s: float, *, is_late: bool) -> bool:
        if is_late is not self.is_late or self.calls <= 0 or now_s >= self.until_s:
            return False
        self.calls -= 1
        return True


class Wire:
    """Stands in for a `Store` or a `Ledger`: a pause before each call, faults around it."""

    def __init__(
        self,
        name: str,
        call: Callable[..., Any],
        pause: Callable[[str], None],
        suffer: Callable[[str, bool], None],
    ) -> None:
        self._name = name
        self._call = call
        self._pause = pause
        self._suffer = suffer

    def __getattr__(self, method: str) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            if method in _SILENT:
                return self._call(method, *args, **options)
            if method not in _LOCKED:
                self._pause(f"{self._name}.{method} {_brief(*args)}")
            self._suffer(self._name, False)
            result = self._call(method, *args, **options)
            self._suffer(self._name, True)
            return result

        return call

    def close(self) -> None:
        """Connections are closed with their process."""


def _brief(*args: Any) -> str:
    """The first argument, without what differs from run to run."""
    if not args or not isinstance(args[0], str):
        return ""
    kind, _, rest = args[0].partition("/")
    return kind if kind == "quarantine" else f"{kind}/{rest[:16]}"
