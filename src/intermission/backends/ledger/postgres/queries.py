"""The statements of `queries.sql`, by name. `{name}` in one stands for the text of another."""

from __future__ import annotations

import re
from importlib.resources import files


def _load() -> dict[str, str]:
    text = files("intermission.backends.ledger.postgres").joinpath("queries.sql").read_text()
    parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    known: dict[str, str] = {}
    for name, sql in zip(parts[1::2], parts[2::2], strict=True):
        known[name] = re.sub(r"\{(\w+)\}", lambda found: known[found[1]], sql.strip())
    return known


SQL = _load()
