"""What people start beside the work: submissions, a rebuild of the ledger, a collection."""

from __future__ import annotations

from intermission.maintenance.gc import attempts_under_way, collect
from intermission.maintenance.rebuild import rebuild
from intermission.model import Job
from intermission.testing.simulator.host import Host
from intermission.testing.simulator.process import Chore
from intermission.testing.simulator.submission import submit
from intermission.testing.simulator.worker import LEASE_TTL_S
from intermission.testing.simulator.world import World

GRACE_S = 4 * LEASE_TTL_S


class Submitter(Chore):
    """Submits a job of a fleet, or submits it again."""

    def __init__(
        self, world: World, name: str, host: Host, *, job: Job, thorough: bool = False
    ) -> None:
        self._job = job
        self._thorough = thorough
        super().__init__(world, name, host)

    def chore(self) -> None:
        submit(self, self._job, thorough=self._thorough)


class Rebuilder(Chore):
    def chore(self) -> None:
        rebuild(self.ledger, self.store, self.host.folder / "scratch")


class Collector(Chore):
    """Some passes: each removes what one before has seen a grace ago."""

    def chore(self) -> None:
        for _ in range(4):
            self._collect()
            self.sleep(GRACE_S * self.world.random.uniform(0.4, 1.1))

    def _collect(self) -> None:
        collect(
            self.store,
            self.world.clock,
            grace_s=GRACE_S,
            under_way=lambda: attempts_under_way(self.ledger, self.store),
        )
