"""How often Python looks for cycles of garbage, in a process that makes very many small values.

It changes when memory is given back and nothing else.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

YOUNG_MAX = 100_000
"""Leases and ends come by the thousand and are in no cycle: Python's 700 would have it look
through all of them, time and again, for a tenth of what a task without a receipt costs. So many
are alive at no time, even while batches change hands."""


@contextmanager
def rarely_collected() -> Generator[None, None, None]:
    """Look rarely, and never again through what is there by now, which is mostly modules."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
