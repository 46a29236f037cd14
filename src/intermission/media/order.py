"""What the caller asks of the child: one value, sent as JSON in the child's only argument."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from intermission.media.info import Limits
from intermission.media.sniff import Kind

Task = Literal["probe", "extract_audio", "keyframes", "frames"]


@dataclass(frozen=True)
class Order:
    task: Task
    parent_pid: int
    source_fd: int
    kind: Kind
    limits: Limits
    output_fd: int = -1
    rate_hz: int = 0
    at_ms: tuple[int, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Order:
        fields: dict[str, Any] = json.loads(text)
        fields["kind"] = Kind(**fields["kind"])
        fields["limits"] = Limits(**fields["limits"])
        fields["at_ms"] = tuple(fields["at_ms"])
        return cls(**fields)
