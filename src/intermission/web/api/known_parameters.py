"""Refusing query parameters that no endpoint reads."""

from __future__ import annotations

from collections import Counter
from typing import get_origin

from fastapi import Request

from intermission.web.problems import Problem


def known_parameters(request: Request) -> None:
    """Refuse a query parameter that nobody reads: a filter misspelt would filter nothing.

    So would the first of two where one is expected.
    """
    fields = request.scope["route"].dependant.query_params
    known = {field.alias: get_origin(field.field_info.annotation) is list for field in fields}
    for name, count in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in known:
            raise Problem(
                422,
                "There is no such parameter",
                f"there is no query parameter {name[:80]!r}.",
                remedy=f"There are: {', '.join(sorted(known)) or 'none'}.",
            )
        if count > 1 and not known[name]:
            raise Problem(
                422,
                "The parameter is given twice",
                f"the query parameter {name!r} takes one value, and {count} were sent.",
                remedy="Send one.",
            )
