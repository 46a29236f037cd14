"""What the caller asks of the child: one value, sent as JSON to its standard input.

Not as an argument: those have a limit, and other users of the machine can read them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from intermission.media.film import Coding, Film, Passage
from intermission.media.info import Limits
from intermission.media.sniff import Kind

Task = Literal["probe", "extract_audio", "frames", "survey", "encode", "soundtrack", "stills"]


@dataclass(frozen=True)
class Encode:
    """Which pictures are wanted, and how."""

    film: Film
    passage: Passage
    coding: Coding

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Encode:
        passage = Passage.from_json(told["passage"])
        return cls(Film(**told["film"]), passage, Coding(**told["coding"]))


@dataclass(frozen=True)
class Soundtrack:
    """Which sound is wanted, and how."""

    stream: int
    rate_hz: int
    layout: str
    kbps: int
    segment_s: int


@dataclass(frozen=True)
class Stills:
    """How large pictures are wanted, and how many on a sheet."""

    width: int
    height: int
    columns: int = 1
    rows: int = 1


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
    encode: Encode | None = None
    soundtrack: Soundtrack | None = None
    stills: Stills | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Order:
        fields: dict[str, Any] = json.loads(text)
        fields["kind"] = Kind(**fields["kind"])
        fields["limits"] = Limits(**fields["limits"])
        fields["at_ms"] = tuple(fields["at_ms"])
        if fields["encode"] is not None:
            fields["encode"] = Encode.from_json(fields["encode"])
        if fields["soundtrack"] is not None:
            fields["soundtrack"] = Soundtrack(**fields["soundtrack"])
        if fields["stills"] is not None:
            fields["stills"] = Stills(**fields["stills"])
        return cls(**fields)
