"""The memory ledger: the reference implementation, for tests and simulations."""

from intermission.backends.ledger.memory.ledger import MemoryLedger

__all__ = ["MemoryLedger"]
