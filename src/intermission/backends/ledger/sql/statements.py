"""Loads SQL statements by name: from `queries.sql` beside this file, which all databases share,
and from the `queries.sql` of one database.

They are written as PostgreSQL reads them, with three additions. `:name` is a value. `ROWS(:name,
column type, ...) AS alias` is a list of rows, read as a table. `{name}` stands for the text of
another statement; the shared ones use it for what each database spells in its own way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files

_SHARED = "intermission.backends.ledger.sql"
_ROWS = re.compile(r"ROWS\(:(\w+), ([^)]+)\) AS (\w+)")


def statements(package: str, dialect: Callable[[str], str]) -> dict[str, str]:
    """The shared statements and those of a package, as its database reads them."""
    texts: dict[str, str] = {}
    for where in (_SHARED, package):
        text = files(where).joinpath("queries.sql").read_text()
        text = re.sub(r"^ *-- (?!name: ).*\n", "", text, flags=re.MULTILINE)
        parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
        texts.update(zip(parts[1::2], parts[2::2], strict=True))

    def whole(name: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: whole(found[1]), texts[name].strip())

    return {name: dialect(whole(name)) for name in texts}


@cache
def migrations(package: str) -> list[tuple[int, str]]:
    """(version, statements) of every migration of a package, in order."""
    return sorted(
        (int(entry.name[:4]), entry.read_text())
        for entry in files(package).joinpath("migrations").iterdir()
        if entry.name.endswith(".sql")
    )


def for_postgres(sql: str) -> str:
    """As psycopg takes it. Rows arrive as an array for each column."""

    def unnested(rows: re.Match[str]) -> str:
        columns = [column.split() for column in rows[2].split(",")]
        arrays = ", ".join(f":{rows[1]}_{n}::{kind}[]" for n, (_, kind) in enumerate(columns))
        return f"unnest({arrays}) AS {rows[3]} ({', '.join(name for name, _ in columns)})"

    sql = _ROWS.sub(unnested, sql)
    sql = re.sub(r" INDEXED BY \w+", "", sql)
    return re.sub(r"(?<!:):(\w+)", r"%(\1)s", sql)


def for_sqlite(sql: str) -> str:
    """As SQLite takes it: without schema, types and locks. Lists and rows arrive as JSON."""

    def selected(rows: re.Match[str]) -> str:
        names = [column.split()[0] for column in rows[2].split(",")]
        columns = ", ".join(f"value ->> {n} AS {name}" for n, name in enumerate(names))
        return f"(SELECT {columns} FROM jsonb_each(:{rows[1]})) AS {rows[3]}"

    sql = _ROWS.sub(selected, sql)
    sql = re.sub(r"= ANY\(:(\w+)::\w+\[\]\)", r"IN (SELECT value FROM json_each(:\1))", sql)
    sql = re.sub(r"= ANY\(ARRAY(\(.+?\))\)", r"IN \1", sql)
    return re.sub(r"\bintermission\.|::\w+(\[\])?|\s+FOR (NO KEY )?UPDATE", "", sql)
