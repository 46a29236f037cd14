"""A ledger in an object store: a local SQLite working copy, uploaded by its one owner."""

from intermission.backends.ledger.synced.ownership import Ownership

__all__ = ["Ownership"]
