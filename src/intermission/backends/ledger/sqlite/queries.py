"""The statements of `queries.sql`, by name."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files


def _load() -> dict[str, str]:
    text = files("intermission.backends.ledger.sqlite").joinpath("queries.sql").read_text()
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], (sql.strip() for sql in parts[2::2]), strict=True))


SQL = _load()


@cache
def repeated(name: str, count: int) -> str:
    """A statement for `count` rows, which it has as `VALUES (...) ...`.

    Rows bound in place take half the time of rows that arrive as JSON.
    """
    before, row, after = re.split(r"(\([?, ]+\)) \.\.\.", SQL[name])
    return before + ", ".join([row] * count) + after
