"""The SQLite ledger: one file beside the work, many processes of one machine."""

from intermission.backends.ledger.sqlite.ledger import SqliteLedger

__all__ = ["SqliteLedger"]
