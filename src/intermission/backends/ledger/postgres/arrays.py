"""Lists as PostgreSQL arrays, a whole column of a batch at once.

The driver looks at every item of a list by itself, which costs more than all else that a ledger
does for a task. Statements say by a cast what their arrays are of, so that text is enough here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from psycopg import DataError
from psycopg.adapt import Dumper


class ArrayDumper(Dumper):
    """Dumps flat lists of strings, numbers, truth values and None."""

    def dump(self, obj: Sequence[Any]) -> bytes:
        return array_text(obj).encode()


def array_text(values: Sequence[Any]) -> str:
    """The array as PostgreSQL reads it."""
    try:
        # No string of the database has a NUL in it, so one can stand between two of them.
        joined = "\0".join(values)
    except TypeError:
        return "{" + ",".join(_items(values)) + "}"
    if joined.count("\0") > max(0, len(values) - 1):
        raise DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return '{"' + _escaped(joined).replace("\0", '","') + '"}' if values else "{}"


def _items(values: Iterable[Any]) -> Iterable[str]:
    for value in values:
        if value is None:
            yield "NULL"
        elif isinstance(value, str):
            yield array_text([value])[1:-1]
        else:
            yield str(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
