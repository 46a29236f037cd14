"""Encoders: which one writes which codec, which versions are here, how players call the result."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from intermission.errors import EnvironmentFault

ENCODERS = {"h264": "libx264", "hevc": "libx265", "av1": "libsvtav1"}


@cache
def versions() -> str:
    """The version of what all encoders come in."""
    try:
        return f"av {version('av')}"
    except PackageNotFoundError as e:
        raise EnvironmentFault(
            "encoding needs PyAV, which is not installed.",
            remedy="Install it: pip install 'intermission[media]'.",
        ) from e


def codecs_of(init: bytes) -> str:
    """How a track calls itself in a playlist (RFC 6381), from what comes before its segments."""
    for box, named in ((b"avcC", _avc), (b"hvcC", _hevc), (b"av1C", _av1)):
        at = init.find(box)
        if at >= 0:
            return named(init[at + 4 :])
    return ""


def _avc(box: bytes) -> str:
    return f"avc1.{box[1]:02x}{box[2]:02x}{box[3]:02x}"


def _hevc(box: bytes) -> str:
    space = ("", "A", "B", "C")[box[1] >> 6]
    compatible = int(f"{int.from_bytes(box[2:6], 'big'):032b}"[::-1], 2)
    tier = "H" if box[1] & 0x20 else "L"
    constraints = ".".join(f"{byte:X}" for byte in box[6:12].rstrip(b"\0"))
    named = f"hvc1.{space}{box[1] & 0x1F}.{compatible:X}.{tier}{box[12]}"
    return f"{named}.{constraints}" if constraints else named


def _av1(box: bytes) -> str:
    tier = "H" if box[2] & 0x80 else "M"
    bits = 12 if box[2] & 0x20 else 10 if box[2] & 0x40 else 8
    return f"av01.{box[1] >> 5}.{box[1] & 0x1F:02d}{tier}.{bits:02d}"
