"""What is known of a video's frames, and which of them are to be encoded how: values only."""

from __future__ import annotations

from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

PQ, HLG = 16, 18
HDR_TRANSFERS = (PQ, HLG)
"""How these call themselves in a stream (ITU-T H.273)."""
RGB, BT709 = 0, 1


@dataclass(frozen=True)
class VideoTrack:
    """The frames of a source, as they are to be shown.

    Times are whole ticks, `scale` of them a second, since the source's first moment.
    """

    codec: str
    width: int
    height: int
    """Upright and with square pixels."""
    scale: int
    origin: int
    """The stamp of the first moment."""
    frames: int
    end: int
    """When the last frame ends."""
    late: int
    """When the first frame would be shown. It is shown from the first moment on."""
    has_stamps: bool
    """Whether frames can be told by their times. Those that cannot are counted."""
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
        """Brighter than a screen of old can show: PQ or HLG."""
        return self.transfer in HDR_TRANSFERS

    def tags(self, *, tone_map: bool) -> tuple[int, int, int]:
        """Primaries, transfer and matrix of what is encoded (ITU-T H.273)."""
        if tone_map:
            return BT709, BT709, BT709
        return self.primaries, self.transfer, BT709 if self.matrix == RGB else self.matrix

    def size_at(self, lines: int) -> tuple[int, int]:
        """Width and height with so many lines along the shorter side; never larger than it is.

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
    """One rendition: the size of its frames, and the most it may take."""

    width: int
    height: int
    kbps: int


@dataclass(frozen=True)
class EncoderSettings:
    """How frames are encoded, whatever their size. All of it decides about the bytes."""

    codec: str = "h264"
    encoder: str = "libx264"
    preset: str = "veryfast"
    crf: int = 23
    threads: int = 1
    bits: int = 8
    tone_map: bool = False
    """Bring a video in HDR into the range of every screen."""

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
    """A part of a video, in segments, to be encoded in several sizes at once."""

    cuts: tuple[int, ...]
    """When each segment begins: the time of a frame."""
    end: int
    frames: int
    first_segment: int
    keys: tuple[int, ...]
    """Stamps of key frames at or before the beginning, to be tried in this order; none of them
    where it is read from the start."""
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
