"""Does what an order asks, and says what came of it. Runs in the child only, locked in."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Protocol

from intermission.media.approach import pictures_of
from intermission.media.encoding import Track, encode, started
from intermission.media.extraction import Extraction
from intermission.media.opening import Examined, examine, open_container
from intermission.media.order import Order
from intermission.media.pictures import pictures
from intermission.media.soundtrack import SoundtrackWriter
from intermission.media.stills import sheets
from intermission.media.surveying import survey
from intermission.media.wav import WavWriter

_PROGRESS_EVERY_S = 0.25


class Say(Protocol):
    def __call__(self, **message: object) -> None: ...


def prepare(order: Order) -> list[Track]:
    """What has to be done before the lock-in: a driver opens files of its own."""
    wanted = order.encode
    if wanted is None or not wanted.coding.is_hardware:
        return []
    return started(wanted.film, wanted.passage, wanted.coding)


def answer(
    order: Order, prepared: Sequence[Track], say: Say, send: Callable[[bytes], None]
) -> None:
    """Say what the file is, then whatever else the order asks for."""
    fd = order.source_fd
    examined = examine(fd, order.kind, order.limits)
    say(info=asdict(examined.info))
    if order.task == "extract_audio":
        with open_container(fd, order.kind, order.limits) as container:
            writer = WavWriter(order.output_fd, order.rate_hz)
            extraction = Extraction(container, examined, writer, order.rate_hz, order.limits)
            say(extracted=extraction.run(fd, _Meter(say)))
    elif order.task == "frames":
        reopen = partial(open_container, fd, order.kind, order.limits)
        for ms, width, height, rgb in pictures(reopen, examined, order.at_ms, fd):
            say(frame={"ms": ms, "width": width, "height": height})
            send(rgb)
    elif order.task == "survey" and all(one.attached_picture for one in examined.info.video):
        say(film=None)
    elif order.task == "survey":
        found = survey(partial(open_container, fd, order.kind, order.limits), examined, fd)
        say(film=asdict(found.film), keys=len(found.keys))
        send(found.shown.tobytes() + found.keys.tobytes())
    else:
        _produce(order, prepared, examined, say, send)


def _produce(
    order: Order,
    prepared: Sequence[Track],
    examined: Examined,
    say: Say,
    send: Callable[[bytes], None],
) -> None:
    """What a player is given: segments of pictures or of sound."""

    def hand(what: str, rung: int, data: bytes) -> None:
        say(piece={"what": what, "rung": rung, "bytes": len(data)})
        send(data)

    fd = order.source_fd
    reopen = partial(open_container, fd, order.kind, order.limits)
    if order.encode is not None:
        film, passage, coding = order.encode.film, order.encode.passage, order.encode.coding
        tracks = prepared or started(film, passage, coding)

        def known() -> Sequence[int]:
            return survey(reopen, examined, fd).shown

        counted = () if film.has_stamps else known()
        with pictures_of(reopen, film, passage, counted) as coming:
            encode(coming, tracks, film, passage, coding, hand, _Meter(say), known)
    elif order.stills is not None:
        with reopen() as container:
            for data in sheets(container, order.stills):
                hand("sheet", 0, data)
    elif order.soundtrack is not None:
        track = order.soundtrack
        with reopen() as container:
            extraction = Extraction(
                container,
                examined,
                SoundtrackWriter(track, hand),
                track.rate_hz,
                order.limits,
                layout=track.layout,
                stream=track.stream,
            )
            say(extracted=extraction.run(fd, _Meter(say)))


class _Meter:
    """Reports progress, but not with every packet."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._next_at = 0.0

    def __call__(self, fraction: float) -> None:
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + _PROGRESS_EVERY_S
            self._say(progress=min(max(fraction, 0.0), 1.0))
