"""Registries of workers: in a SQLite file of its own, or in PostgreSQL beside the ledger."""
