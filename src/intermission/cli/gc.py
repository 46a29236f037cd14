"""`intermission gc`: away with files that no receipt names."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from intermission.cli import options
from intermission.cli.formatting import count, near, size
from intermission.cli.jsonout import emit

SOME_LEFT = 3
"""The exit code where some workspaces could not be swept."""


def gc(
    ctx: typer.Context,
    place: options.Searched = options.HERE,
    grace_s: Annotated[
        float | None, typer.Option(metavar="S", help="How long such a file is kept at least.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")
    ] = False,
    ledger: options.LedgerUrl = None,
    as_json: options.AsJson = False,
    verbose: options.Verbose = False,
) -> None:
    """Remove files that no receipt names.

    Killed attempts leave them behind. A file is removed by the second pass that finds it
    unnamed, at least the grace after the first: one that is just being committed is not touched.
    Files of a task that is under way stay, however long it runs. A workspace with a worker of this
    machine in it is left alone; one whose jobs are in a shared ledger needs that --ledger, and
    without it the exit code is 3.
    """
    from dataclasses import asdict

    from intermission.composition.locations import as_location

    app = options.open_app(ctx)
    grace_s = app.settings.gc_grace_s if grace_s is None else grace_s
    documents: list[dict[str, Any]] = []
    for source, workspace in app.workspaces(as_location(place)):
        swept = app.gc(source, workspace, grace_s=grace_s, dry_run=dry_run)
        documents.append({"source": str(source), **asdict(swept)})
        if swept.in_use and not as_json:
            print(f"{near(source)}: in use by a worker, left alone")
        if swept.needs_ledger and not as_json:
            print(f"{near(source)}: its jobs are in a shared ledger, name it with --ledger")
        if not as_json and (swept.removed or swept.waiting):
            verb = "would remove" if dry_run else "removed"
            print(
                f"{near(source)}: {verb} {count(swept.removed, 'file')} "
                f"({size(swept.removed_bytes)}), {swept.waiting:,} waiting for the next pass"
            )
    if as_json:
        emit({"event": "swept", "dry_run": dry_run, "sources": documents})
    if any(document["needs_ledger"] for document in documents):
        raise typer.Exit(SOME_LEFT)
