"""The process that reads untrusted media: `python -I -m intermission.media.child`.

It reads its request from standard input, caps itself, imports libav, locks itself in, and only then
looks at the file. It answers on standard output, one JSON object a line; a frame's bytes follow
their line. It knows the file by its descriptor alone: no name, no credential and no other file.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import pkgutil
import signal
import sys

from intermission.media import sandbox
from intermission.media.request import Request

_ANSWER = 1
_DEVICE_BYTES = 1 << 44


def main() -> None:
    request = Request.from_json(sys.stdin.buffer.read())
    # The terminal's Ctrl-C reaches the whole group; what it means is the caller's to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sandbox.die_with(request.parent_pid)
    os.nice(request.limits.niceness)
    size_bytes = os.fstat(request.source_fd).st_size
    # A driver maps its device's memory, and more of it than the machine has.
    is_hardware = request.encode is not None and request.encode.settings.is_hardware
    sandbox.limit(
        memory_bytes=_DEVICE_BYTES if is_hardware else request.limits.memory_bytes,
        # The caller's watch is shorter; this holds where the caller itself is stopped.
        cpu_s=math.ceil(request.limits.whole_wall_s(request.limits.duration_s * 1000, size_bytes)),
        file_bytes=request.limits.output_bytes if request.output_fd >= 0 else 0,
    )
    try:
        _work(request)
    except MemoryError:
        _say(limit="memory")
    except ImportError as e:
        # With too little address space the loader cannot map the libraries.
        if "map" not in str(e):
            raise
        _say(limit="memory")
    except BrokenPipeError:
        os._exit(0)  # the caller has what it wanted


def _work(request: Request) -> None:
    import av
    import av.error
    import av.logging

    from intermission.media.child_server import answer, prepare
    from intermission.media.refusal import AGAIN, Refused
    from intermission.media.wav import NotWritten

    # PyAV imports parts of itself when they are first used; after the lock-in it could not.
    for module in pkgutil.walk_packages(av.__path__, "av."):
        if module.name not in ("av.__main__", "av.datasets"):
            importlib.import_module(module.name)
    av.logging.set_level(None)
    try:
        prepared = prepare(request)
        locked_in = sandbox.lock_in()
        _say(locked_in=locked_in)
        missing = [name for name in sandbox.CONTROLS if name not in locked_in]
        if missing and request.limits.must_be_protected:
            _say(unprotected=missing)
            return
        answer(request, prepared, _say, _send)
        _say(end=True)
    except Refused as e:
        _say(refused={"found": e.found, "remedy": e.remedy})
    except (MemoryError, BrokenPipeError):
        raise
    except av.error.FFmpegError as e:
        _say(refused={"found": f"is damaged: libav gave up ({e.strerror}).", "remedy": AGAIN})
    except OSError as e:
        doing = "writing the audio of" if isinstance(e, NotWritten) else "reading"
        _say(os_error={"doing": doing, "errno": e.errno, "strerror": e.strerror})
    except Exception as e:
        # Only the file can have brought this about: everything else is loaded and at rest.
        found = f"broke the decoder ({type(e).__name__}: {str(e)[:200]})."
        _say(refused={"found": found, "remedy": AGAIN})


def _say(**message: object) -> None:
    _send(json.dumps(message).encode() + b"\n")


def _send(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(_ANSWER, view) :]


if __name__ == "__main__":
    main()
