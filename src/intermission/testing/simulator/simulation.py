"""The simulation: a seed decides who runs next, how time passes, and what goes wrong when.

Each seed plays with a few kinds of faults only, so that those it has meet each other often.
When its faults are used up everything behaves, and the job must come to its end.
"""

from __future__ import annotations

import hashlib
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from intermission.engine import record
from intermission.engine.gc import collect
from intermission.errors import IntermissionError
from intermission.model import JobState, Output, Receipt, TaskState
from intermission.telemetry import listen
from intermission.testing.clock import FakeClock
from intermission.testing.faults import Crashed
from intermission.testing.ledger.history import check_history
from intermission.testing.simulator.audit import Violation
from intermission.testing.simulator.ledgers import Ledgers
from intermission.testing.simulator.process import LEASE_TTL_S, Process
from intermission.testing.simulator.world import World
