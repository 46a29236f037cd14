"""One audio track as AAC in segments. Runs in the child only.

The encoder begins with a packet that holds nothing but its own start-up. It is left out, so that
the first sample of the source is the first that plays, and audio and video stay in sync.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from io import BytesIO

import av
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream

from intermission.media.fmp4 import Sample, segment
from intermission.media.request import AudioRequest

_FRAME = 1024
"""Samples in one packet of AAC."""
_SAMPLE_BYTES = 2


class AudioSegmentWriter:
    """Takes 16-bit samples, and emits segments as they are complete."""

    def __init__(self, wanted: AudioRequest, emit: Callable[[str, int, bytes], None]) -> None:
        self.samples = 0
        self._rate_hz = wanted.rate_hz
        self._layout = wanted.layout
        self._emit = emit
        self._segment_samples = wanted.segment_s * wanted.rate_hz
        header = BytesIO()
        options = {"movflags": "empty_moov+default_base_moof", "use_editlist": "0"}
        self._container = av.open(
            header, "w", format="mp4", options=options | {"fflags": "bitexact"}
        )
        stream = self._container.add_stream(
            "aac", rate=wanted.rate_hz, options={"flags": "+global_header+bitexact"}
        )
        assert isinstance(stream, AudioStream)
        self._stream = stream
        stream.codec_context.layout = wanted.layout
        stream.codec_context.bit_rate = wanted.kbps * 1000
        stream.codec_context.time_base = Fraction(1, wanted.rate_hz)
        self._container.start_encoding()
        self._frame_bytes = _FRAME * _SAMPLE_BYTES * stream.codec_context.layout.nb_channels
        self._unencoded = bytearray()
        self._encoded = 0
        self._packets: list[Sample] = []
        self._number = 0
        emit("init", 0, header.getvalue())

    def write(self, pcm: bytes | memoryview) -> None:
        self._unencoded += pcm
        self.samples += len(pcm) * _FRAME // self._frame_bytes
        while len(self._unencoded) >= self._frame_bytes:
            self._encode(self._unencoded[: self._frame_bytes])
            del self._unencoded[: self._frame_bytes]

    def silence(self, samples: int) -> None:
        while samples > 0:
            piece = min(samples, _FRAME)
            self.write(bytes(piece * self._frame_bytes // _FRAME))
            samples -= piece

    def finish(self) -> None:
        if self._unencoded:
            self._encode(self._unencoded.ljust(self._frame_bytes, b"\0"))
        self._keep(self._stream.encode(None))
        if self._packets:
            self._cut()

    def _encode(self, pcm: bytes | bytearray) -> None:
        frame = AudioFrame(format="s16", layout=self._layout, samples=_FRAME)
        frame.planes[0].update(bytes(pcm).ljust(frame.planes[0].buffer_size, b"\0"))
        frame.sample_rate, frame.pts = self._rate_hz, self._encoded
        frame.time_base = Fraction(1, self._rate_hz)
        self._encoded += _FRAME
        self._keep(self._stream.encode(frame))

    def _keep(self, packets: Sequence[av.Packet]) -> None:
        for packet in packets:
            assert packet.pts is not None
            if packet.pts < 0 or packet.pts >= self._encoded:
                continue
            if packet.pts >= (self._number + 1) * self._segment_samples:
                self._cut()
            self._packets.append(Sample(bytes(packet), packet.pts, is_key=True))

    def _cut(self) -> None:
        end = self._packets[-1].pts + _FRAME
        self._emit("segment", 0, segment(self._number, self._packets, end))
        self._packets = []
        self._number += 1
