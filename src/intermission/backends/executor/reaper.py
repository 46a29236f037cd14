"""The reaper: a small process between a worker and its slots, so that nothing outlives it.

It is forked from the worker before the worker has threads or open ledgers, or is started as an
interpreter of its own where that moment has passed, as in a notebook. It does three things: it
forks slots, each in a process group of its own; it kills a slot's group when told to, or when
the slot dies; and when the worker is gone, however it went, it kills them all. Orphans of a
slot that left its group come to the reaper as their new parent and are killed too. If the
reaper itself is killed, its slots are killed by the kernel, and whatever they had started comes
to a second reaper, the first one's parent, which waits for that, cleans up and forks another.
If the second is killed, the first ends its slots and takes its place. So one of them is left to
clean up when the worker is killed with the other, and a killed reaper costs the tasks in flight
and nothing else.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from intermission.errors import EnvironmentFault, Interrupted
from intermission.polling import readable

_MESSAGE = struct.Struct("=cii")
_SPAWN, _KILL, _STARTED, _ENDED, _REPLACED = b"s", b"k", b"p", b"x", b"r"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

ALL = -1
"""In place of a slot: every one that was there."""
SlotMain = Callable[[Connection], None]


class Reaper:
    """The worker's end. Create it first, from a process with a single thread.

    With `own_interpreter` any process may create it, at any time: what its threads hold and what
    it has open is not inherited. `slot_main` is imported there by its name.
    """

    def __init__(self, slot_main: SlotMain, *, own_interpreter: bool = False) -> None:
        if threading.active_count() > 1 and not own_interpreter:
            raise RuntimeError("a reaper must be forked before any thread is started")
        self._control, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._groups: dict[int, int] = {}
        self._interpreter: subprocess.Popen[bytes] | None = None
        if own_interpreter:
            self._interpreter = _start_interpreter(theirs, slot_main)
            self.pid = self._interpreter.pid
        else:
            self.pid = os.fork()
            if self.pid == 0:
                self._control.close()
                _become_second_reaper(theirs, slot_main)
        theirs.close()

    def fileno(self) -> int:
        """Readable when a slot ended; see `ended`."""
        return self._control.fileno()

    def spawn(self, slot: int) -> Connection:
        """Start a slot; the connection to it."""
        ours, theirs = socket.socketpair()
        with self._lock:
            try:
                socket.send_fds(self._control, [_MESSAGE.pack(_SPAWN, slot, 0)], [theirs.fileno()])
            except OSError as e:
                raise self._gone() from e
        theirs.close()
        return Connection(ours.detach())

    def kill(self, slot: int) -> None:
        """Kill a slot and everything it started. It will be reported by `ended`."""
        with self._lock, suppress(OSError):
            self._control.sendall(_MESSAGE.pack(_KILL, slot, 0))

    def ended(self) -> list[tuple[int, int]]:
        """Slots that ended since the last call, with their wait status.

        `ALL` with a reaper that was killed: another one has taken its place.
        """
        ended: list[tuple[int, int]] = []
        while readable([self._control], 0):
            data = _receive(self._control)
            if data is None:
                raise self._gone()
            kind, slot, value = _MESSAGE.unpack(data)
            if kind == _STARTED:
                self._groups[slot] = value
            elif kind == _REPLACED:
                self._groups.clear()
                ended.append((ALL, value))
            else:
                self._groups.pop(slot, None)
                ended.append((slot, value))
        return ended

    def _gone(self) -> EnvironmentFault:
        for group in self._groups.values():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        self._groups.clear()
        fault = EnvironmentFault(
            "the reapers, the parents of the slots, were killed.",
            remedy="Progress is saved; run the same command again.",
        )
        fault.exit_code = Interrupted.exit_code
        return fault

    def close(self) -> None:
        """Kill every slot, and wait until the reaper has seen to it. A second time is no error."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
            while _receive(self._control) is not None:  # who is there may not be our child
                pass
        self._control.close()
        if self._interpreter is not None:
            self._interpreter.wait()
            return
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


_INTERPRETER = """
import json, sys
sys.path[:] = json.loads(sys.argv[3])
from intermission.backends.executor.reaper import serve
serve(int(sys.argv[1]), sys.argv[2])
"""


def _start_interpreter(control: socket.socket, slot_main: SlotMain) -> subprocess.Popen[bytes]:
    """A reaper that shares nothing with this process but the control socket."""
    name = f"{slot_main.__module__}:{slot_main.__qualname__}"
    arguments = (str(control.fileno()), name, json.dumps(sys.path))
    return subprocess.Popen(
        [sys.executable, "-c", _INTERPRETER, *arguments],
        stdin=subprocess.DEVNULL,
        pass_fds=(control.fileno(),),
        start_new_session=True,  # an interrupt from the terminal is the worker's
    )


def serve(control_fd: int, slot_main: str) -> NoReturn:
    """Be the reaper of the process that started this interpreter."""
    module, _, name = slot_main.partition(":")
    _become_second_reaper(
        socket.socket(fileno=control_fd), getattr(import_module(module), name), leads_session=True
    )


def _receive(control: socket.socket) -> bytes | None:
    data = b""
    while len(data) < _MESSAGE.size:
        try:
            more = control.recv(_MESSAGE.size - len(data))
        except ConnectionError:
            return None
        if not more:
            return None
        data += more
    return data


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _become_second_reaper(
    control: socket.socket, slot_main: SlotMain, *, leads_session: bool = False
) -> NoReturn:
    """Fork the reaper proper, clean up after it, and replace one that was killed.

    The reaper comes back here when its parent was killed: it is the second one from then on.
    """
    try:
        if not leads_session:
            os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        _silence()
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        while True:
            parent_lives, while_open = os.pipe()
            reaper = os.fork()
            if reaper == 0:
                os.close(while_open)
                if not _reap_until_alone(control, parent_lives, slot_main):
                    break
            else:
                os.close(parent_lives)
                _, status = os.waitpid(reaper, 0)
                os.close(while_open)
                _end_all_children()
                if not os.WIFSIGNALED(status):  # it has seen the worker's end
                    break
            control.sendall(_MESSAGE.pack(_REPLACED, ALL, 0))
    finally:
        os._exit(0)


def _reap_until_alone(control: socket.socket, parent_lives: int, slot_main: SlotMain) -> bool:
    """Whether it ended because the second reaper is gone, and not the worker. No slot is left."""
    os.setsid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    is_alone = _Loop(control, parent_lives, slot_main).run()
    _end_all_children()
    os.close(parent_lives)
    return is_alone


def _children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _end_all_children() -> None:
    """Kill every child, and the orphans that become children by that, until none is left."""
    with suppress(ChildProcessError, OSError):
        while True:
            for pid in _children():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.wait()


def _silence() -> None:
    """A slot's own output is redirected into logs; until then it must not reach the terminal."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)


class _Loop:
    """The reaper's life after the fork."""

    def __init__(self, control: socket.socket, parent_lives: int, slot_main: SlotMain) -> None:
        self._control = control
        self._parent_lives = parent_lives
        self._slot_main = slot_main
        self._slots: dict[int, int] = {}
        self._wake, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def run(self) -> bool:
        """Until the worker or the second reaper is gone; whether it was the latter."""
        is_alone = False
        while not is_alone:
            sources = [self._control, self._wake, self._parent_lives]
            ready = readable(sources)
            if self._wake in ready:
                os.read(self._wake, 4096)
                self._reap()
            is_alone = self._parent_lives in ready
            if not is_alone and self._control in ready and not self._obey():
                break
        for pid in self._slots.values():
            _kill_group(pid)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._wake)
        os.close(self._wake_write)
        return is_alone

    def _obey(self) -> bool:
        """Handle one message; False when the worker is gone."""
        try:
            data, fds, _, _ = socket.recv_fds(self._control, _MESSAGE.size, 1)
        except ConnectionError:
            return False
        if len(data) < _MESSAGE.size:
            return False
        kind, slot, _ = _MESSAGE.unpack(data)
        if kind == _SPAWN:
            self._spawn(slot, fds[0])
        elif slot in self._slots:
            _kill_group(self._slots[slot])
        return True

    def _spawn(self, slot: int, fd: int) -> None:
        reaper = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_slot(reaper, fd)
        os.close(fd)
        self._slots[slot] = pid
        self._tell(_STARTED, slot, pid)

    def _become_slot(self, reaper: int, fd: int) -> NoReturn:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != reaper:
                os._exit(1)
            self._control.close()
            self._slot_main(Connection(fd))
            status = 0
        finally:
            os._exit(status)

    def _reap(self) -> None:
        ended: list[tuple[int, int]] = []
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0] != 0:
                ended.append(found)
        slots = {pid: slot for slot, pid in self._slots.items()}
        for pid, status in ended:
            if pid in slots:
                del self._slots[slots[pid]]
                _kill_group(pid)
                self._tell(_ENDED, slots[pid], status)
        if ended:  # an orphan's end makes orphans of its own children
            self._kill_orphans()

    def _tell(self, kind: bytes, slot: int, value: int) -> None:
        with suppress(OSError):
            self._control.sendall(_MESSAGE.pack(kind, slot, value))

    def _kill_orphans(self) -> None:
        """Children that are no slots are what a dead slot left behind."""
        with suppress(OSError):
            for child in _children():
                if child not in self._slots.values():
                    with suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
