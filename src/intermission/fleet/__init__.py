"""Many workers on one ledger: what a fleet adds to the engine.

The ledger is the only truth. A worker takes whatever is claimable, of any job, and opens what
the job needs when it has a lease of it.
"""

from intermission.fleet.worker import FleetWorker

__all__ = ["FleetWorker"]
