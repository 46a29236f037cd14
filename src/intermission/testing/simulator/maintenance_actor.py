"""What people start beside the work: a rebuild of the ledger, a garbage collection."""

from __future__ import annotations

from intermission.maintenance.gc import collect
from intermission.maintenance.rebuild import rebuild
from intermission.testing.simulator.process import Process
from intermission.testing.simulator.worker import LEASE_TTL_S

GRACE_S = 2 * LEASE_TTL_S


class Rebuilder(Process):
    def body(self) -> None:
        rebuild(self.ledger, self.store, self.world.scratch)


class Collector(Process):
    def body(self) -> None:
        collect(self.store, self.world.clock, grace_s=GRACE_S)
