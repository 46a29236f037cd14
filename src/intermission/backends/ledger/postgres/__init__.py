"""The PostgreSQL ledger: one database for all jobs, workers on any number of machines."""

from intermission.backends.ledger.postgres.ledger import PostgresLedger

__all__ = ["PostgresLedger"]
