"""A video, a section of it, and how to encode that section: values only."""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

PQ, HLG = 16, 18
HDR_TRANSFERS = (PQ, HLG)
"""Transfer characteristics, as ITU-T H.273 numbers them."""
RGB, BT709 = 0, 1


@dataclass(frozen=True)
class VideoTrack:
    """The video of a source, as it is shown.

    Times are whole ticks, `scale` of them a second, since the source's first moment.
    """

    codec: str
    width: int
    height: int
    """Upright and with square pixels."""
    scale: int
    origin: int
    """The timestamp of the first moment."""
    frames: int
    end: int
    """When the last frame ends."""
    late: int
    """When the source shows its first frame. We show it from the first moment on."""
    has_stamps: bool
    """Whether times identify frames. Without them, frames are counted."""
    rotation_deg: int
    """How far to turn the frames counter-clockwise."""
    is_interlaced: bool
    bits: int
    primaries: int
    transfer: int
    matrix: int
    full_range: bool

    @property
    def is_hdr(self) -> bool:
        """High dynamic range: PQ or HLG."""
        return self.transfer in HDR_TRANSFERS

    def tags(self, *, tone_map: bool) -> tuple[int, int, int]:
        """Primaries, transfer and matrix of what is encoded (ITU-T H.273)."""
        if tone_map:
            return BT709, BT709, BT709
        return self.primaries, self.transfer, BT709 if self.matrix == RGB else self.matrix

    def size_at(self, lines: int) -> tuple[int, int]:
        """Width and height with this many lines on the shorter side; never larger than the video.

        Both are even, because colour is stored for two lines at a time.
        """
        factor = min(Fraction(1), Fraction(lines, min(self.width, self.height)))
        return _even(self.width * factor), _even(self.height * factor)

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> VideoTrack:
        """Raises KeyError or TypeError for anything but a whole description."""
        types = {"int": int, "str": str, "bool": bool}
        for field in fields(cls):
            if type(told[field.name]) is not types[str(field.type)]:
                raise TypeError(f"{field.name} is {told[field.name]!r}")
        return cls(**{field.name: told[field.name] for field in fields(cls)})


def _even(length: Fraction) -> int:
    return max(2, 2 * round(length / 2))


@dataclass(frozen=True)
class RenditionSize:
    """One rendition: the size of its frames, and its highest bit rate."""

    width: int
    height: int
    kbps: int


@dataclass(frozen=True)
class EncoderSettings:
    """How frames are encoded, whatever their size. Every field changes the bytes."""

    codec: str = "h264"
    encoder: str = "libx264"
    preset: str = "veryfast"
    crf: int = 23
    threads: int = 1
    bits: int = 8
    tone_map: bool = False
    """Map HDR to the range that every screen shows."""

    @property
    def is_hardware(self) -> bool:
        return self.encoder.endswith("_nvenc")

    @property
    def pix_fmt(self) -> str:
        if self.bits > 8:
            return "p010le" if self.is_hardware else "yuv420p10le"
        return "yuv420p"


@dataclass(frozen=True)
class Section:
    """Consecutive segments of a video, to be encoded in several sizes at once."""

    cuts: tuple[int, ...]
    """When each segment begins: the time of a frame."""
    end: int
    frames: int
    first_segment: int
    keys: tuple[int, ...]
    """Timestamps of key frames at or before the beginning, to try in this order; empty where the
    video is read from its start."""
    renditions: tuple[RenditionSize, ...] = ()

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Section:
        renditions = tuple(RenditionSize(**rendition) for rendition in told["renditions"])
        return cls(
            **{
                **told,
                "cuts": tuple(told["cuts"]),
                "keys": tuple(told["keys"]),
                "renditions": renditions,
            }
        )
