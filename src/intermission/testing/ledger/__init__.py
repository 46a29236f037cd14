"""The contract of `ports/ledger.py`, as a suite that any ledger can be put through.

Subclass `LedgerContract` in a test module and give it two fixtures: `clock`, a `FakeClock`, and
`open_ledger`, which returns a function that opens one more connection to the same ledger,
reading that clock. Every test also checks, at its end, that the ledger's events explain every
state of every task and that no illegal transition was made.
"""

from intermission.testing.ledger.claiming import Claiming
from intermission.testing.ledger.completing import Completing
from intermission.testing.ledger.completing_and_claiming import CompletingAndClaiming
from intermission.testing.ledger.deletion import Deletion
from intermission.testing.ledger.failing import Failing
from intermission.testing.ledger.fan_in import FanIn
from intermission.testing.ledger.holding import Holding
from intermission.testing.ledger.racing import Racing
from intermission.testing.ledger.reading import Reading
from intermission.testing.ledger.recovering import Recovering
from intermission.testing.ledger.refusing import Refusing
from intermission.testing.ledger.replanning import Replanning
from intermission.testing.ledger.restarting import Restarting
from intermission.testing.ledger.scheduling import Scheduling
from intermission.testing.ledger.skipping import Skipping
from intermission.testing.ledger.submitting import Submitting

__all__ = ["LedgerContract"]


class LedgerContract(
    Submitting,
    Claiming,
    Scheduling,
    Holding,
    Completing,
    CompletingAndClaiming,
    FanIn,
    Replanning,
    Failing,
    Skipping,
    Recovering,
    Refusing,
    Restarting,
    Deletion,
    Reading,
    Racing,
):
    """Everything a ledger promises."""
