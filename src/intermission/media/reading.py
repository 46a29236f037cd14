"""Reading a media file: what it is, its audio, its frames.

Each opens the file here, looks at its first bytes, and leaves the rest to a child. No libav
code runs on this side, and what the child wrote is checked before it is believed.
"""

from __future__ import annotations

import importlib.util
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from intermission.errors import EnvironmentFault, MediaError, SourceError, fault_from_os
from intermission.media import wav
from intermission.media.child_client import ChildClient
from intermission.media.info import ExtractedAudio, Frame, Limits, MediaInfo
from intermission.media.refusal import AGAIN, EXPORT
from intermission.media.request import Request
from intermission.media.sniff import NotMedia, sniff

Pathish = str | PathLike[str]
DEFAULT = Limits()


def probe(path: Pathish, *, limits: Limits = DEFAULT) -> MediaInfo:
    """What the file holds. Raises MediaError, naming what was found, if it isn't usable media."""
    with (
        request_for("probe", path, limits) as request,
        ChildClient(request, name_of(path)) as child,
    ):
        return info_of(child, request)


def extract_audio(
    path: Pathish,
    to: Pathish,
    *,
    rate_hz: int = 16_000,
    limits: Limits = DEFAULT,
    on_progress: Callable[[float], object] | None = None,
) -> ExtractedAudio:
    """Write the audio as a mono 16-bit WAV file in which sample n is media time n / rate.

    Late starts and gaps become silence. A file without an audio track gives an empty WAV file.
    Raises MediaError if the file ends much before its claim; nothing is left at `to` then.
    """
    with request_for("extract_audio", path, limits) as request, _output(to) as output_fd:
        request = replace(request, output_fd=output_fd, rate_hz=rate_hz)
        with ChildClient(request, name_of(path)) as child:
            info = info_of(child, request)
            deadline = time.monotonic() + limits.whole_wall_s(info.duration_ms, info.size_bytes)
            while "extracted" not in (message := child.listen(deadline)):
                if on_progress is not None and "progress" in message:
                    on_progress(float(message["progress"]))
            return _checked(child, message["extracted"], output_fd, rate_hz)


def frames(path: Pathish, at_ms: Sequence[int], *, limits: Limits = DEFAULT) -> Iterator[Frame]:
    """For each time the frame on screen then, in the order asked for; ascending is fastest.

    `Frame.ms` is the frame's own time. The last frame stands for every time after it, and
    frames are not turned by the stream's rotation. Read them in one thread to the end, or
    close the iterator: the child lives as long as it does.
    """
    with request_for("frames", path, limits) as request:
        request = replace(request, at_ms=tuple(at_ms))
        with ChildClient(request, name_of(path)) as child:
            info_of(child, request)
            while "end" not in (message := child.listen(time.monotonic() + limits.wall_s)):
                yield _frame(child, message, limits)


def name_of(path: Pathish) -> str:
    return Path(path).name


@contextmanager
def request_for(task: Any, path: Pathish, limits: Limits) -> Iterator[Request]:
    """The file, open and known for what it is, as a request for a child."""
    fd = _open(path)
    try:
        kind = sniff(lambda offset, length: os.pread(fd, length, offset))
        if isinstance(kind, NotMedia):
            raise MediaError(
                f"{name_of(path)} is not media: it is {kind.found}.",
                remedy=EXPORT if os.fstat(fd).st_size else AGAIN,
            )
        if importlib.util.find_spec("av") is None:
            raise EnvironmentFault(
                "reading media needs PyAV, which is not installed.",
                remedy="Install it: pip install 'intermission[media]'.",
            )
        yield Request(task, os.getpid(), fd, kind, limits)
    finally:
        os.close(fd)


def _open(path: Pathish) -> int:
    try:
        # Without O_NONBLOCK a named pipe would make this wait for somebody to write to it.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as e:
        raise SourceError(
            f"{path} cannot be opened: {(e.strerror or str(e)).lower()}.",
            remedy="Check that it is there and that this user may read it.",
        ) from e
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise MediaError(f"{name_of(path)} is not a file.", remedy="Give the path of a media file.")
    return fd


@contextmanager
def _output(to: Pathish) -> Iterator[int]:
    """A new file to write; deleted again unless everything went well."""
    try:
        fd = os.open(to, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    except OSError as e:
        raise fault_from_os(e, f"writing {to}", EnvironmentFault) from e
    try:
        yield fd
    except BaseException:
        with suppress(OSError):
            Path(to).unlink()
        raise
    finally:
        os.close(fd)


def info_of(child: ChildClient, request: Request) -> MediaInfo:
    size_bytes = os.fstat(request.source_fd).st_size
    deadline = time.monotonic() + request.limits.open_wall_s(size_bytes)
    while "info" not in (message := child.listen(deadline)):
        pass
    try:
        return MediaInfo.from_json(message["info"])
    except (KeyError, TypeError, ValueError) as e:
        raise child.invalid_answer() from e


def _checked(
    child: ChildClient, told: dict[str, Any], output_fd: int, rate_hz: int
) -> ExtractedAudio:
    """The result, checked against the file that the child wrote."""
    try:
        samples, skipped = int(told["samples"]), int(told["skipped_packets"])
        has_audio = bool(told["has_audio"])
        expected = wav.header(samples, rate_hz)
    except (KeyError, TypeError, ValueError, ArithmeticError) as e:
        raise child.invalid_answer() from e
    size = os.fstat(output_fd).st_size
    if os.pread(output_fd, wav.HEADER_BYTES, 0) != expected or size != wav.file_bytes(samples):
        raise child.invalid_answer()
    return ExtractedAudio(samples, samples * 1000 // rate_hz, skipped, has_audio)


def _frame(child: ChildClient, message: dict[str, Any], limits: Limits) -> Frame:
    try:
        told = message["frame"]
        ms, width, height = int(told["ms"]), int(told["width"]), int(told["height"])
    except (KeyError, TypeError, ValueError) as e:
        raise child.invalid_answer() from e
    if not (0 < width <= limits.side_pixels and 0 < height <= limits.side_pixels):
        raise child.invalid_answer()
    rgb = child.take(width * height * 3, time.monotonic() + limits.wall_s)
    return Frame(ms, width, height, rgb)
