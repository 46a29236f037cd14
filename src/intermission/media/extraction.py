"""One audio track as samples in which sample n is media time n / rate. Runs in the child only.

That libav reached the end without an error proves nothing: what was read is compared with what
the file claims. Corrupt packets are left out and counted; silence takes their place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NoReturn, Protocol

import av
import av.error
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.stream import Discard

from intermission.media import decoders
from intermission.media.container import Clock, Examined, packets, raise_unless_damage
from intermission.media.info import Limits
from intermission.media.refusal import AGAIN, EXPORT, RAISE_LIMIT, Refused
from intermission.media.timeline import TICKS_PER_S, Timeline
from intermission.media.wav import SAMPLE_BYTES, max_samples

_CUT_SHORT_S = Fraction(1, 10)
"""How much a file may lack that is known to have lost its end."""
_LONG_S = 60
"""How much longer than its claim the audio may be, at least: the claim may be a rounded one."""
_RATES_HZ = range(1000, 768_001)
"""A damaged header can claim one sample a second, and make hours out of one packet."""


Progress = Callable[[float], None]


class Writer(Protocol):
    """Takes 16-bit samples, those of all channels together, one after the other."""

    @property
    def samples(self) -> int: ...
    def write(self, pcm: bytes | memoryview) -> None: ...
    def silence(self, samples: int) -> None: ...
    def finish(self) -> None: ...


class Extraction:
    """Reads one opened file once, from its first packet to its last."""

    def __init__(
        self,
        container: InputContainer,
        examined: Examined,
        writer: Writer,
        rate_hz: int,
        limits: Limits,
        *,
        layout: str = "mono",
        stream: int | None = None,
        samples_min: int = 0,
    ) -> None:
        """Of the track with this number, or of the one that a player would play.

        Silence follows audio that has fewer samples than `samples_min`.
        """
        self._container = container
        self._examined = examined
        self._writer = writer
        self._rate_hz = rate_hz
        self._layout = layout
        self._sample_bytes = SAMPLE_BYTES * av.AudioLayout(layout).nb_channels
        self._index = stream
        # libav calls the last packet of a WAV file corrupt where its header has no size.
        self._is_wav = examined.info.container == "wav"
        self._samples_min = samples_min
        self._claimed_s = Fraction(examined.info.duration_ms, 1000)
        longest_s = Fraction(limits.duration_s)
        if examined.timing != "stamped":
            longest_s = min(longest_s, self._claimed_s + max(_LONG_S, self._claimed_s / 20))
        self._max_samples = min(int(longest_s * rate_hz), max_samples(limits.output_bytes))
        horizon_s = min(self._claimed_s + allowance_s(self._claimed_s), longest_s)
        self._timeline = Timeline(int(horizon_s * TICKS_PER_S))
        self._clock = Clock(container)
        self._resampler: av.AudioResampler | None = None
        self._format: tuple[str, str, int] | None = None
        self._drop_samples = 0
        self._packets = self._skipped = 0
        self._reach = self._audio_reach = 0

    def run(self, fd: int, report: Progress) -> dict[str, Any]:
        """Write all of it; the result."""
        stream = self._choose()
        if stream is not None:
            self._read(stream, fd, report)
            self._flush()
            self._judge()
            self._grow(max(0, self._samples_min - self._writer.samples))
        self._writer.finish()
        return {
            "samples": self._writer.samples,
            "skipped_packets": self._skipped,
            "has_audio": stream is not None,
        }

    def _choose(self) -> AudioStream | None:
        """The track asked for, or the one a player would play, if there is one we may decode."""
        container = self._container
        audio = [stream for stream in container.streams.audio if stream.codec_context is not None]
        if self._index is not None:
            audio = [_numbered(audio, self._index)]
        if not container.streams.audio:
            return None
        if self._claimed_s * self._rate_hz > self._max_samples:
            raise Refused(
                f"would make a WAV file of more than {self._max_samples} samples, its limit.",
                RAISE_LIMIT,
            )
        allowed = [stream for stream in audio if decoders.is_allowed(stream)]
        if not allowed:
            names = ", ".join(sorted({decoders.name_of(stream) for stream in audio})) or "unknown"
            which = "audio" if self._index is None else f"audio track {self._index}"
            raise Refused(f"has {which} in a format that is not supported ({names}).", EXPORT)
        best = container.streams.best("audio")
        return best if isinstance(best, AudioStream) and best in allowed else allowed[0]

    def _read(self, stream: AudioStream, fd: int, report: Progress) -> None:
        """Decode every packet of the track; the others only tell how far the file reaches."""
        container = self._container
        is_indexed = self._examined.info.container == "mov" and self._examined.timing == "claimed"
        if is_indexed and stream.duration and stream.time_base:
            # Its tracks each claim their length, so the frames need not be read at all.
            start = stream.start_time or 0
            self._claimed_s = (start + stream.duration) * stream.time_base - self._examined.origin_s
            for other in container.streams:
                if other is not stream:
                    other.discard = Discard.all
        stream.codec_context.thread_count = 1
        whole = max(int(self._claimed_s * TICKS_PER_S), 1)
        try:
            for packet in packets(container):
                end = self._clock.end(packet)
                self._reach = max(self._reach, end)
                if packet.stream_index == stream.index:
                    self._audio_reach = max(self._audio_reach, end)
                    self._decode(packet)
                    report(self._reach / whole)
        except av.error.FFmpegError as e:
            raise_unless_damage(e, fd)
            if self._examined.timing != "claimed":
                raise Refused(
                    f"cannot be read beyond {self._reach / TICKS_PER_S:.1f} s ({e.strerror}).",
                    AGAIN,
                ) from e

    def _decode(self, packet: av.Packet) -> None:
        is_data = packet.size > 0
        self._packets += is_data
        try:
            if packet.is_corrupt and not self._is_wav:
                raise ValueError("marked as corrupt by the demuxer")
            decoded = packet.decode()
            frames = [frame for frame in decoded if isinstance(frame, AudioFrame)]
            if any(frame.sample_rate not in _RATES_HZ for frame in frames):
                raise ValueError("an impossible sample rate")
            for frame in frames:
                self._take(frame, packet.stream_index)
        except MemoryError:
            raise
        except (av.error.FFmpegError, ValueError):
            self._skipped += is_data

    def _take(self, frame: AudioFrame, stream_index: int) -> None:
        at = None if frame.pts is None else self._clock.at(stream_index, frame.pts)
        place = self._timeline.place(at, frame.samples * TICKS_PER_S // frame.sample_rate)
        shape = (frame.format.name, frame.layout.name, frame.sample_rate)
        if place.silence_until is not None or shape != self._format:
            self._flush()
            self._format = shape
            self._resampler = av.AudioResampler("s16", self._layout, self._rate_hz)
        if place.silence_until is not None:
            self._grow(self._samples(place.silence_until) - self._writer.samples)
        self._drop_samples += self._samples(place.drop)
        if self._resampler is not None:
            frame.pts = None  # the resampler counts, it does not follow stamps
            for piece in self._resampler.resample(frame):
                self._write(piece)

    def _samples(self, ticks: int) -> int:
        return (ticks * self._rate_hz + TICKS_PER_S // 2) // TICKS_PER_S

    def _flush(self) -> None:
        if self._resampler is not None:
            for piece in self._resampler.resample(None):
                self._write(piece)
        self._resampler = None

    def _grow(self, samples: int) -> None:
        self._check_room(samples)
        self._writer.silence(samples)

    def _write(self, piece: AudioFrame) -> None:
        dropped = min(self._drop_samples, piece.samples)
        self._drop_samples -= dropped
        self._check_room(piece.samples - dropped)
        self._writer.write(
            memoryview(piece.planes[0])[
                dropped * self._sample_bytes : piece.samples * self._sample_bytes
            ]
        )

    def _check_room(self, samples: int) -> None:
        if self._writer.samples + samples > self._max_samples:
            raise Refused(
                f"claims {float(self._claimed_s):.1f} s and decodes to more than "
                f"{self._max_samples / self._rate_hz:.0f} s.",
                AGAIN,
            )

    def _judge(self) -> None:
        if self._skipped * 2 > self._packets:
            raise Refused(
                f"is too damaged: {self._skipped} of {self._packets} audio packets "
                "cannot be decoded.",
                AGAIN,
            )
        slack_s = allowance_s(self._claimed_s, is_cut=self._examined.is_cut)
        reach_s = Fraction(self._reach, TICKS_PER_S)
        if self._examined.timing == "claimed" and reach_s < self._claimed_s - slack_s:
            self._refuse_short(reach_s, self._claimed_s)
        told_s = self._examined.told_s
        if told_s is not None and reach_s < told_s - allowance_s(told_s):
            self._refuse_short(reach_s, told_s)
        decoded_s = Fraction(self._writer.samples, self._rate_hz)
        audio_reach_s = Fraction(self._audio_reach, TICKS_PER_S)
        if decoded_s < audio_reach_s - slack_s and not self._skipped:
            self._refuse_short(decoded_s, audio_reach_s)

    def _refuse_short(self, found_s: Fraction, expected_s: Fraction) -> NoReturn:
        raise Refused(f"ends after {float(found_s):.1f} of {float(expected_s):.1f} s.", AGAIN)


def _numbered(audio: Sequence[AudioStream], index: int) -> AudioStream:
    """The track with this number. Another one would be wrong audio under the right label."""
    for stream in audio:
        if stream.index == index:
            return stream
    found = ", ".join(f"{stream.index} ({decoders.name_of(stream)})" for stream in audio)
    raise Refused(
        f"has no audio track {index}. It has: {found or 'none'}.", "Ask for a track that it has."
    )


def allowance_s(claimed_s: Fraction, *, is_cut: bool = False) -> Fraction:
    """How much before its claim a file may end: recorders round, and tracks differ in length."""
    if is_cut:
        return _CUT_SHORT_S
    return max(min(Fraction(2), claimed_s / 4), claimed_s / 20)
