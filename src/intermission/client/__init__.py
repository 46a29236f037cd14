"""Intermission from Python: run a pipeline here, or submit jobs and follow them.

`run`, `submit` and `Client` are offered by the package itself. They ask operations, as commands
do, and return the documents that commands print with `--json`. They work in any thread, of a
notebook too, and raise the errors of `intermission.errors`.
"""

from intermission.client.in_place import run
from intermission.client.jobs import Client, submit

__all__ = ["Client", "run", "submit"]
