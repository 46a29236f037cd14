"""A simulator of many workers on one job: seeded, in one process, on a clock of its own.

`simulate(seed, ...)` runs the real engine over a memory store and any ledger, interrupts it
wherever it can be interrupted, and raises `Violation` when a promise does not hold. The same
seed plays the same story again.
"""

from intermission.testing.simulator.audit import Violation
from intermission.testing.simulator.fault_injector import AIMED, FAULTS
from intermission.testing.simulator.final_checks import Results
from intermission.testing.simulator.ledgers import Ledgers, SqliteLedgers
from intermission.testing.simulator.simulation import Report, simulate

__all__ = [
    "AIMED",
    "FAULTS",
    "Ledgers",
    "Report",
    "Results",
    "SqliteLedgers",
    "Violation",
    "simulate",
]
