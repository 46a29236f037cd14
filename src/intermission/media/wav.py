"""WAV files of mono 16-bit samples: the header, and a writer over an open descriptor."""

from __future__ import annotations

import os
import struct

HEADER_BYTES = 44
SAMPLE_BYTES = 2
_HEADER = struct.Struct("<4sI4s4sIHHIIHH4sI")
_SILENCE = bytes(1 << 16)


def header(samples: int, rate_hz: int) -> bytes:
    """The first 44 bytes of a file of this many samples."""
    data_bytes = samples * SAMPLE_BYTES
    return _HEADER.pack(
        b"RIFF",
        HEADER_BYTES - 8 + data_bytes,
        b"WAVE",
        b"fmt ",
        16,
        1,  # PCM
        1,  # channel
        rate_hz,
        rate_hz * SAMPLE_BYTES,
        SAMPLE_BYTES,
        8 * SAMPLE_BYTES,
        b"data",
        data_bytes,
    )


def file_bytes(samples: int) -> int:
    """Size of a file of this many samples."""
    return HEADER_BYTES + samples * SAMPLE_BYTES


def max_samples(output_bytes: int) -> int:
    """How many samples fit into a file of this size whose header still counts them."""
    data_bytes = min(output_bytes - HEADER_BYTES, 2**32 - 1 - (HEADER_BYTES - 8))
    return max(data_bytes // SAMPLE_BYTES, 0)


class NotWritten(OSError):
    """The output could not be written; that is the disk's fault, never the input's."""


class WavWriter:
    """Appends samples; `finish` writes the header, so an unfinished file is no WAV file."""

    def __init__(self, fd: int, rate_hz: int) -> None:
        self._fd = fd
        self._rate_hz = rate_hz
        self._buffer = bytearray()
        self._offset = HEADER_BYTES
        self.samples = 0

    def write(self, pcm: bytes | memoryview) -> None:
        self._buffer += pcm
        self.samples += len(pcm) // SAMPLE_BYTES
        if len(self._buffer) >= len(_SILENCE):
            self._flush()

    def silence(self, samples: int) -> None:
        while samples > 0:
            piece = min(samples, len(_SILENCE) // SAMPLE_BYTES)
            self.write(_SILENCE[: piece * SAMPLE_BYTES])
            samples -= piece

    def finish(self) -> None:
        self._flush()
        self._put(header(self.samples, self._rate_hz), 0)

    def _flush(self) -> None:
        self._put(self._buffer, self._offset)
        self._offset += len(self._buffer)
        self._buffer = bytearray()

    def _put(self, data: bytes | bytearray, offset: int) -> None:
        view = memoryview(data)
        while view:
            try:
                written = os.pwrite(self._fd, view, offset)
            except OSError as e:
                raise NotWritten(e.errno, e.strerror) from e
            view, offset = view[written:], offset + written
