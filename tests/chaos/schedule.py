"""What happens when: drawn from a seed before anything starts, so that a seed repeats it.

Faults and jobs are drawn apart: more faults change no job. A host has at most one fault at a
time, and so have the database and the server; each fault is two moments, its beginning and its
end, and has ended when the time is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

LEASE_S = 8.0
QUIET_S = 12.0
"""How long the fleet is left alone at first, so that it is there when the first fault comes."""
MEAN_GAP_S = 4.0
REST_S = 5.0
"""How long a host is left alone after a fault."""

PIPELINES = ("letters", "frames", "reel")
OLDER, NEWER = 1, 2


@dataclass(frozen=True)
class Fault:
    """Something goes wrong at `at_s`, and is put right at `until_s`."""

    at_s: float
    until_s: float
    kind: str
    target: str


@dataclass(frozen=True)
class Submission:
    """Jobs that somebody asks for: new sources, or those of an earlier submission once more."""

    at_s: float
    no: int
    pipeline: str
    release: int
    over_http: bool
    texts: tuple[str, ...]
    again: int | None = None
    cancel_at_s: float | None = None


# How often, and how long it lasts. Some stops are shorter than a lease and some are longer.
_HOST_FAULTS = {
    "kill the worker": (18, (3.0, 6.0)),
    "kill the whole host": (10, (1.0, 6.0)),
    "stop the worker, short": (8, (1.0, LEASE_S / 2)),
    "stop the worker, long": (5, (LEASE_S * 1.3, LEASE_S * 2)),
    "stop the whole host, short": (8, (1.0, LEASE_S / 2)),
    "stop the whole host, long": (5, (LEASE_S * 1.3, LEASE_S * 2)),
    "kill a child of the worker": (5, (0.0, 0.1)),
    "fill the scratch": (14, (4.0, 12.0)),
    "input/output errors": (12, (4.0, 12.0)),
}
_OTHER_FAULTS = {
    "restart the database": (10, (0.0, 2.0)),
    "kill the database": (5, (0.0, 2.0)),
    "restart the server": (7, (0.0, 3.0)),
    "kill the server": (5, (0.0, 3.0)),
}
KINDS = _HOST_FAULTS | _OTHER_FAULTS
_SUBMIT_EVERY_S = (2.0, 6.0)
_WORDS = ("raven", "bust", "door", "lamp", "floor", "shadow", "chamber", "wing", "ember")


def faults(seed: int, duration_s: float, hosts: Sequence[str]) -> list[Fault]:
    """Every fault of a run, in the order in which they begin."""
    rng = Random(f"faults {seed}")
    kinds, weights = list(KINDS), [weight for weight, _ in KINDS.values()]
    free_from_s: dict[str, float] = {}
    drawn: list[Fault] = []
    at_s = QUIET_S
    while (at_s := at_s + rng.expovariate(1 / MEAN_GAP_S)) < duration_s:
        (kind,) = rng.choices(kinds, weights)
        target = rng.choice(hosts) if kind in _HOST_FAULTS else kind.split()[-1]
        until_s = at_s + rng.uniform(*KINDS[kind][1])
        if free_from_s.get(target, 0.0) <= at_s and until_s < duration_s:
            free_from_s[target] = until_s + REST_S
            drawn.append(Fault(at_s, until_s, kind, target))
    return drawn


def submissions(seed: int, duration_s: float) -> list[Submission]:
    """Every job that is asked for in a run, and which of them are cancelled when."""
    rng = Random(f"jobs {seed}")
    drawn: list[Submission] = []
    at_s = 0.0
    while (at_s := at_s + rng.uniform(*_SUBMIT_EVERY_S)) < duration_s:
        (pipeline,) = rng.choices(PIPELINES, (5, 4, 2))
        over_http = rng.random() < 0.4
        release = NEWER if over_http or rng.random() < 0.4 else OLDER  # the server is a newer one
        texts = tuple(_text(rng) for _ in range(rng.randint(1, 3)))
        cancel_at_s = at_s + rng.uniform(1.0, 15.0) if rng.random() < 0.1 else None
        no = len(drawn)
        drawn.append(Submission(at_s, no, pipeline, release, over_http, texts, None, cancel_at_s))
        older = [one for one in drawn if one.release == OLDER and one.again is None]
        if older and rng.random() < 0.1:  # somebody upgraded, and asks for the same once more
            was = rng.choice(older)
            drawn.append(
                Submission(at_s, no + 1, was.pipeline, NEWER, False, was.texts, again=was.no)
            )
    return drawn


def _text(rng: Random) -> str:
    return " ".join(rng.choices(_WORDS, k=rng.randint(6, 14))) + f" {rng.getrandbits(48):012x}"
