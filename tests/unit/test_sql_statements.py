"""The statements that the ledgers share, as each database reads them."""

from __future__ import annotations

import re
from importlib.resources import files

from intermission.backends.ledger.sql.statements import for_postgres, for_sqlite


def _names(folder: str) -> list[str]:
    path = files("intermission.backends.ledger").joinpath(folder, "queries.sql")
    return re.findall(r"^-- name: (\w+)$", path.read_text(), flags=re.MULTILINE)


def test_no_statement_stands_twice() -> None:
    """The second of one name would hide the first."""
    for own in ("sqlite", "postgres"):
        names = _names("sql") + _names(own)
        assert sorted(names) == sorted(set(names))


def test_a_value_of_rows_is_a_table() -> None:
    sql = "SELECT b.id FROM ROWS(:beats, id bigint, begun boolean) AS b"
    assert for_postgres(sql) == (
        "SELECT b.id FROM unnest(%(beats_0)s::bigint[], %(beats_1)s::boolean[]) AS b (id, begun)"
    )
    assert for_sqlite(sql) == (
        "SELECT b.id FROM (SELECT value ->> 0 AS id, value ->> 1 AS begun "
        "FROM jsonb_each(:beats)) AS b"
    )


def test_hints_and_locks_are_read_by_the_database_that_has_them() -> None:
    sql = (
        "SELECT id FROM intermission.tasks INDEXED BY tasks_held\n"
        "WHERE job_id = ANY(:jobs::bigint[]) AND (:step::integer IS NULL OR no = :step)\n"
        "AND id = ANY(ARRAY(SELECT id FROM locked)) ORDER BY id\nFOR NO KEY UPDATE;"
    )
    assert for_postgres(sql) == (
        "SELECT id FROM intermission.tasks\n"
        "WHERE job_id = ANY(%(jobs)s::bigint[]) AND (%(step)s::integer IS NULL OR no = %(step)s)\n"
        "AND id = ANY(ARRAY(SELECT id FROM locked)) ORDER BY id\nFOR NO KEY UPDATE;"
    )
    assert for_sqlite(sql) == (
        "SELECT id FROM tasks INDEXED BY tasks_held\n"
        "WHERE job_id IN (SELECT value FROM json_each(:jobs)) AND (:step IS NULL OR no = :step)\n"
        "AND id IN (SELECT id FROM locked) ORDER BY id;"
    )
