"""Long lists in pages: at most `limit` rows, and the cursor that the next page begins after.

A cursor is the number of the last row that was shown. Rows that come or go while somebody turns
pages are never shown twice, and none that stays is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Annotated, TypeVar

from fastapi import Query

Row = TypeVar("Row")

NUMBER_MAX = 2**63 - 1

Limit = Annotated[int, Query(ge=1, le=1000, description="How many rows a page has at most.")]
Cursor = Annotated[
    str | None,
    Query(pattern=r"^[0-9]{1,18}$", description="The `next` of the page before."),
]


def page(
    rows: Iterable[Row], number: Callable[[Row], int], limit: int
) -> tuple[list[Row], str | None]:
    """The first rows, and the cursor of the page after them; None when there is none."""
    found = list(islice(rows, limit + 1))
    if len(found) <= limit:
        return found, None
    return found[:limit], str(number(found[limit - 1]))
