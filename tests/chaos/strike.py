"""Doing a fault to the fleet, and putting it right again."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass

from chaos.fleet import Fleet, Host, until
from chaos.journal import Journal
from chaos.schedule import Fault

OUTLIVE_S = 30.0
"""How long a killed worker's processes may be seen: a second, and what a busy machine adds."""

BACK_S = 30.0
"""How long after its start a server may not be heard yet, on a busy machine."""


@dataclass
class Struck:
    """A fault as it happened, in the time of the clock on the wall."""

    kind: str
    target: str
    began: float
    ended: float


class Striker:
    """Faults, begun and ended; called from one thread, which starts all processes."""

    def __init__(self, fleet: Fleet, journal: Journal) -> None:
        self._fleet, self._journal = fleet, journal
        self.wrong: list[str] = []
        self.struck: dict[Fault, Struck] = {}

    def begin(self, fault: Fault) -> None:
        began = time.time()
        self._journal.note(fault.target, f"{fault.kind}, for {fault.until_s - fault.at_s:.1f} s")
        if fault.target == "database":
            is_kill = fault.kind.startswith("kill")
            self._fleet.database.stop(signal.SIGQUIT if is_kill else signal.SIGINT)
        elif fault.target == "server":
            self._stop_server(signal.SIGKILL if fault.kind.startswith("kill") else signal.SIGTERM)
        elif not self._strike(self._fleet.hosts[fault.target], fault.kind):
            self._journal.note(fault.target, "that cannot be done on this machine; left out")
            return
        self._journal.count(fault.kind)
        self.struck[fault] = Struck(fault.kind, fault.target, began, float("inf"))

    def end(self, fault: Fault) -> None:
        self._journal.note(fault.target, f"{fault.kind}: put right")
        if fault.target == "database":
            self._fleet.database.start()
        elif fault.target == "server":
            self._fleet.server.start()
        else:
            self._mend(self._fleet.hosts[fault.target], fault.kind)
        if fault in self.struck:
            self.struck[fault].ended = time.time()

    def were_away(self, since: float) -> bool:
        """Whether the database or the server was, or just came back."""
        return any(
            struck.target in ("database", "server") and struck.ended + BACK_S >= since
            for struck in self.struck.values()
        )

    def _stop_server(self, how: signal.Signals) -> None:
        self._fleet.server.strike(how)
        assert self._fleet.server.process is not None
        self._fleet.server.process.wait(60)

    def _strike(self, host: Host, kind: str) -> bool:
        match kind:
            case "kill the worker":
                host.is_down = True
                host.program.strike(signal.SIGKILL)
            case "kill the whole host":
                host.is_down = True
                host.strike_all(signal.SIGKILL)
            case "kill a child of the worker":  # a slot, or the reaper that keeps the slots
                for child in host.program.children()[:1]:
                    child.kill()
            case "stop the worker, short" | "stop the worker, long":
                host.program.strike(signal.SIGSTOP)
            case "stop the whole host, short" | "stop the whole host, long":
                host.strike_all(signal.SIGSTOP)
            case "fill the scratch":
                return host.scratch.fill()
            case "input/output errors":
                (host.faults / "EIO").touch()
            case _:
                raise ValueError(f"no such fault: {kind}")
        return True

    def _mend(self, host: Host, kind: str) -> None:
        if kind == "kill a child of the worker":
            return
        if kind.startswith("kill"):
            self._nothing_outlives(host)
            host.program.start()
            host.is_down = False
        elif kind.startswith("stop the worker"):
            host.program.strike(signal.SIGCONT)
        elif kind.startswith("stop"):
            host.strike_all(signal.SIGCONT)
        elif kind == "fill the scratch":
            host.scratch.free()
        else:
            (host.faults / "EIO").unlink()

    def _nothing_outlives(self, host: Host) -> None:
        try:
            until(
                lambda: not host.processes(),
                f"the end of every process of {host.name}",
                OUTLIVE_S,
            )
        except TimeoutError:
            left = host.processes()
            said = f"{len(left)} processes of {host.name} outlived its worker"
            self.wrong.append(said)
            self._journal.note(host.name, said)
            host.strike_all(signal.SIGKILL)

    def heal(self) -> None:
        """Let nothing be wrong any more, whatever was begun and not ended."""
        for host in self._fleet.hosts.values():
            host.strike_all(signal.SIGCONT)
            host.scratch.free()
            (host.faults / "EIO").unlink(missing_ok=True)
            if host.program.ended() is not None:
                host.program.start()
                host.is_down = False
        if self._fleet.server.ended() is not None:
            self._fleet.server.start()
