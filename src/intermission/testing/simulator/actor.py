"""Actors: threads of which exactly one runs at a time, so that a seed decides everything.

The scheduler hands the baton to an actor and gets it back when the actor pauses or ends. An
actor killed at a pause unwinds from there, and whatever it tries on its way out is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from intermission.testing.faults import Crashed


class Actor:
    """One thread of the simulation, between its pauses."""

    def __init__(self, name: str, body: Callable[[], None]) -> None:
        self.name = name
        self.where = "start"
        """What it was about to do when it paused."""
        self.error: BaseException | None = None
        self.ended = False
        self.killed = False
        self.wakes_at_s = 0.0
        """It has nothing to do before."""
        self._body = body
        self._credit = 0
        self._go = threading.Lock()
        self._back = threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def resume(self, pauses: int = 1) -> None:
        """Let it run until it has paused so many times, or ended."""
        self._credit = pauses
        self._go.release()
        self._back.acquire()

    def pause(self, where: str, *, sleeps: bool = False) -> None:
        """Called by the actor itself: let others run. Raises if it was killed meanwhile.

        One that sleeps always lets others run, however many pauses it may pass.
        """
        self.check()
        self.where = where
        self._credit = 0 if sleeps else self._credit - 1
        if self._credit <= 0:
            self._back.release()
            self._go.acquire()
        self.check()

    def check(self) -> None:
        if self.killed:
            raise Crashed(self.where)

    def kill(self) -> None:
        """End it where it stands, as a power cut would, and let the thread unwind."""
        self.killed = True
        if not self.ended:
            self.resume()
        self.thread.join()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self.killed:
                self._body()
        except BaseException as e:
            self.error = e
        finally:
            self.ended = True
            self._back.release()
