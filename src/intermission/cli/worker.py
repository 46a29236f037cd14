"""`intermission worker`: take tasks from a shared ledger until asked to stop."""

from __future__ import annotations

import typer

from intermission.cli import options
from intermission.cli.formatting import count


def worker(
    ctx: typer.Context,
    ledger: options.LedgerUrl = None,
    server: options.ServerUrl = None,
    pipelines: options.Pipelines = None,
    slots: options.Slots = None,
    can: options.Can = None,
    drain_s: options.DrainS = None,
    lease_ttl_s: options.LeaseTtlS = None,
    renew_every_s: options.RenewEveryS = None,
    retry_delays_s: options.RetryDelaysS = None,
    output_dir: options.OutputDir = None,
    slot_memory_bytes: options.SlotMemoryBytes = None,
    slot_cpu_s: options.SlotCpuS = None,
    verbose: options.Verbose = False,
) -> None:
    """Work on the jobs of a shared ledger.

    As many workers as you like, on as many machines. Ctrl-C or SIGTERM: no new task is begun,
    those that can end in time do, and the others go on elsewhere.
    """
    from intermission.cli.command import say
    from intermission.operations.worker import work

    settings = options.open_app(ctx).settings

    def ready(name: str) -> None:
        offers = f", offering {', '.join(settings.can)}" if settings.can else ""
        say(f"worker {name} is at work with {count(settings.slots, 'slot')}{offers}")

    reason = work(settings, on_ready=ready)
    say(f"stopped: {reason}")
