"""The caller's side of a child process: starting it, sending the request, reading its answers.

The form of every answer is checked, and nothing else about it is trusted: the file may have taken
over the child. It is killed when it takes too long, and is gone when the client is closed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import IO, Any, NoReturn

from intermission.errors import EnvironmentFault, MediaError, TaskError, fault_from_os
from intermission.media.refusal import AGAIN, RAISE_LIMIT
from intermission.media.request import Request
from intermission.media.sandbox import UNPROTECTED_REMEDY, lacking
from intermission.polling import readable

_LINE_BYTES_MAX = 1 << 20
_READ_BYTES = 1 << 18
_STDERR_TAIL_BYTES = 2000
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)


class ChildClient:
    """One child and one request. Use it in a `with` block, in the thread that made it.

    The child is killed by the kernel when that thread ends, so that it never outlives its
    caller. It stays in the caller's process group, so that whoever kills the group kills it.
    """

    def __init__(self, request: Request, name: str) -> None:
        self._name = name
        self._limits = request.limits
        self._unread = bytearray()
        self._stderr = b""
        fds = [fd for fd in (request.source_fd, request.output_fd) if fd >= 0]
        argv = [sys.executable, "-I", "-m", "intermission.media.child"]
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=fds,
                env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
            )
        except OSError as e:
            raise fault_from_os(e, f"starting to read {name}", EnvironmentFault) from e
        self._send(request)

    def __enter__(self) -> ChildClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _send(self, request: Request) -> None:
        """Tell the child what to do. It reads all of it before it does anything else."""
        assert self._process.stdin is not None
        # A child that ended early is found out, with its reason, by whoever listens to it.
        with suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(request.to_json().encode())

    def listen(self, deadline: float) -> dict[str, Any]:
        """The next message of the child, until this time of the monotonic clock."""
        while b"\n" not in self._unread:
            if len(self._unread) > _LINE_BYTES_MAX:
                self._raise_invalid()
            self._read(deadline)
        line, _, rest = self._unread.partition(b"\n")
        self._unread = bytearray(rest)
        try:
            message = json.loads(line)
        except ValueError:
            self._raise_invalid()
        if not isinstance(message, dict):
            self._raise_invalid()
        try:
            self._raise_if_bad(message)
        except (KeyError, TypeError, ValueError):
            self._raise_invalid()
        return message

    def take(self, count: int, deadline: float) -> bytes:
        """The next bytes that follow a message, such as a frame."""
        while len(self._unread) < count:
            self._read(deadline)
        data = bytes(self._unread[:count])
        del self._unread[:count]
        return data

    def invalid_answer(self) -> MediaError:
        """The error for an answer that no sound child gives."""
        return MediaError(
            f"the decoder gave an invalid answer for {self._name}.",
            remedy=f"It is damaged. {AGAIN}",
        )

    def _raise_invalid(self) -> NoReturn:
        raise self.invalid_answer()

    def _read(self, deadline: float) -> None:
        pipes = [pipe for pipe in (self._process.stdout, self._process.stderr) if pipe is not None]
        ready = _readable(pipes, deadline)
        if not ready:
            self._process.kill()
            raise MediaError(
                f"{self._name} took longer to read than the wall time limit allows.",
                remedy=RAISE_LIMIT,
            )
        for pipe in ready:
            data = os.read(pipe.fileno(), _READ_BYTES)
            if pipe is self._process.stderr:
                self._stderr = (self._stderr + data)[-_STDERR_TAIL_BYTES:]
            elif data:
                self._unread += data
            else:
                self._raise_for_end()

    def _raise_if_bad(self, message: dict[str, Any]) -> None:
        if "refused" in message:
            refused = message["refused"]
            raise MediaError(f"{self._name} {refused['found']}", remedy=str(refused["remedy"]))
        if "limit" in message:
            raise MediaError(
                f"{self._name} needs more memory to read than the limit of "
                f"{self._limits.memory_bytes >> 20} MiB.",
                remedy=RAISE_LIMIT,
            )
        if "unprotected" in message:
            missing = [str(name) for name in message["unprotected"]]
            raise EnvironmentFault(
                f"{self._name} is not read: {lacking(missing)}, "
                'and the setting media_sandbox is "require".',
                remedy=UNPROTECTED_REMEDY,
            )
        if "os_error" in message:
            told = message["os_error"]
            error = OSError(int(told["errno"]), str(told["strerror"]))
            doing = f"{told['doing']} {self._name}"
            raise fault_from_os(error, doing, EnvironmentFault, where="it") from error

    def _raise_for_end(self) -> NoReturn:
        status = self._process.wait()
        if -status in _CRASHES:
            raise MediaError(
                f"{self._name} crashed the decoder ({signal.Signals(-status).name}).",
                remedy=f"It is damaged. {AGAIN}",
            )
        if -status == signal.SIGXCPU:
            raise MediaError(
                f"{self._name} took longer to read than the CPU time limit allows.",
                remedy=RAISE_LIMIT,
            )
        if status < 0:
            raise TaskError(
                f"the process that read {self._name} was killed from outside (signal {-status}).",
                remedy="If the machine was out of memory, use fewer slots.",
            )
        if self._process.stderr is not None:  # what it said last may not have been read yet
            self._stderr += self._process.stderr.read()
        stderr = self._stderr.decode(errors="replace").strip().splitlines()
        raise EnvironmentFault(
            f"the process that reads {self._name} ended with status {status}"
            + (f": {stderr[-1]}" if stderr else "."),
            remedy="Install the media parts again: pip install 'intermission[media]'.",
        )


def _readable(pipes: Sequence[IO[bytes]], deadline: float) -> list[IO[bytes]]:
    """Those with something to read, or at their end; none once the deadline has passed."""
    left_s = deadline - time.monotonic()
    return readable(pipes, left_s) if left_s > 0 else []
