"""A ledger in an object store: a local SQLite working copy, uploaded by its one owner."""

from intermission.backends.ledger.object_ledger.ownership import Ownership

__all__ = ["Ownership"]
