"""Times by a cron expression: when the next one is, in a time zone and through its clock changes.

The rules are those of Debian's cron: 02:30 on a day that has no 02:30 comes at the first minute
after the gap, and on a day that has two it comes once; `*/30 * * * *` comes every half hour,
whatever the clock on the wall says. Nothing here waits for anything.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from intermission.errors import UsageError

_FIELDS = 5
_LOCAL = Path("/etc/localtime")


class Cron:
    """The times that an expression of five fields names."""

    def __init__(self, expression: str, zone: tzinfo) -> None:
        self.expression = expression
        self._zone = zone
        self._check()

    def after(self, moment_ms: int) -> int:
        """The first time later than a moment, both in milliseconds since 1970."""
        start = datetime.fromtimestamp(moment_ms / 1000, UTC).astimezone(self._zone)
        # In an hour that comes twice, the first times may be those of the hour before.
        return next(
            time_ms
            for time in CronSim(self.expression, start)
            if (time_ms := int(time.timestamp() * 1000)) > moment_ms
        )

    def _check(self) -> None:
        found = len(self.expression.split())
        problem = f"it has {found} fields instead of {_FIELDS}"
        if found == _FIELDS:
            try:
                self.after(0)
                return
            except CronSimError as e:
                problem = str(e).lower()
            except StopIteration:
                problem = "no such day ever comes"
        raise UsageError(
            f"{self.expression!r} is no cron expression: {problem}.",
            remedy="Give minute, hour, day of month, month and day of week: '0 2 * * *' is every "
            "day at two.",
        )


def zone_of(name: str | None) -> tzinfo:
    """A time zone by its name, such as Europe/Berlin; without one, that of this machine."""
    given = name or os.environ.get("TZ", "").removeprefix(":")
    try:
        if not given and "TZ" not in os.environ and _LOCAL.exists():
            with _LOCAL.open("rb") as file:
                return ZoneInfo.from_file(file, key="localtime")
        return ZoneInfo(given or "UTC")
    except (LookupError, OSError, ValueError) as e:
        raise UsageError(
            f"there is no time zone {given or str(_LOCAL)!r}.",
            remedy="Name one as Europe/Berlin or UTC; where the machine knows none, "
            "pip install tzdata.",
        ) from e
