"""The ledger over a database that speaks SQL: its rules stand here once, for every database.

A database has its own statements under the names that are used here, its own way to take tasks
while others do (`Database`), and its own schema.
"""

from intermission.backends.ledger.sql.ledger import SqlLedger

__all__ = ["SqlLedger"]
