"""`intermission doctor`: is this machine fit?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from intermission.cli import options
from intermission.cli.jsonout import emit

Checked = Annotated[
    Path, typer.Option("--in", metavar="PLACE", help="The folder whose disk is checked.")
]


def doctor(
    place: Checked = Path(), as_json: options.AsJson = False, verbose: options.Verbose = False
) -> int:
    """Check whether this machine is fit.

    Versions, the disk of this folder, locks, processes. Exit code 4 if something is wrong.
    """
    from dataclasses import asdict

    from intermission.errors import EnvironmentFault
    from intermission.operations.doctor import examine

    findings = list(examine(place.resolve()))
    well = all(finding.well for finding in findings)
    if as_json:
        emit({"event": "checkup", "well": well, "findings": [asdict(one) for one in findings]})
    else:
        for one in findings:
            print(f"{'ok   ' if one.well else 'WRONG'}  {one.name:<12} {one.found}")
            if not one.well:
                print(f"       {'':<12} {one.remedy}")
    return 0 if well else EnvironmentFault.exit_code
