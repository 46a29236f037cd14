"""`intermission worker`: take tasks from a shared ledger until asked to stop."""

from __future__ import annotations

from intermission.cli.options import (
    Can,
    DrainS,
    LeaseTtlS,
    LedgerUrl,
    OutputDir,
    Pipelines,
    RenewEveryS,
    RetryDelaysS,
    ServerUrl,
    SlotCpuS,
    SlotMemoryBytes,
    Slots,
    Verbose,
    open_app,
)


def worker(
    ledger: LedgerUrl = None,
    server: ServerUrl = None,
    pipeline: Pipelines = None,
    slots: Slots = None,
    can: Can = None,
    drain_s: DrainS = None,
    lease_ttl_s: LeaseTtlS = None,
    renew_every_s: RenewEveryS = None,
    retry_delays_s: RetryDelaysS = None,
    output_dir: OutputDir = None,
    slot_memory_bytes: SlotMemoryBytes = None,
    slot_cpu_s: SlotCpuS = None,
    verbose: Verbose = False,
) -> None:
    """Work on the jobs of a shared ledger.

    As many workers as you like, on as many machines. Ctrl-C or SIGTERM: no new task is begun,
    those that can end in time do, and the others go on elsewhere.
    """
    from intermission.cli.command import say
    from intermission.cli.formatting import count
    from intermission.operations.worker import work

    settings = open_app(
        verbose,
        ledger=ledger,
        server=server,
        pipelines=tuple(pipeline) if pipeline else None,
        slots=slots,
        can=tuple(can) if can else None,
        drain_s=drain_s,
        lease_ttl_s=lease_ttl_s,
        renew_every_s=renew_every_s,
        retry_delays_s=retry_delays_s,
        output_dir=output_dir,
        slot_memory_bytes=slot_memory_bytes,
        slot_cpu_s=slot_cpu_s,
    ).settings

    def ready(name: str) -> None:
        offers = f", offering {', '.join(settings.can)}" if settings.can else ""
        say(f"worker {name} is at work with {count(settings.slots, 'slot')}{offers}")

    reason = work(settings, on_ready=ready)
    say(f"stopped: {reason}")
