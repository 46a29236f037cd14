"""Encoders: which one writes which codec, how it is used, how players call the result."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from intermission.errors import EnvironmentFault, ParameterError
from intermission.media.film import Coding, Film

ENCODERS = {"h264": "libx264", "hevc": "libx265", "av1": "libsvtav1"}
_USUAL = {"h264": ("veryfast", 23), "hevc": ("veryfast", 26), "av1": ("10", 35)}
"""Preset and constant quality: about as good as each other, at about the speed of decoding."""
_HARDWARE_PRESET = "p4"
BY_CODEC = -1
"""The constant quality of the codec."""


def usual(
    codec: str, preset: str, crf: int, hdr: str, hardware: str = "none"
) -> tuple[str, int, str]:
    """Preset, quality and what becomes of HDR, where they were left to the codec."""
    preset = preset or (_USUAL[codec][0] if hardware == "none" else _HARDWARE_PRESET)
    crf = _USUAL[codec][1] if crf == BY_CODEC else crf
    if hdr == "keep" and codec == "h264":
        raise ParameterError(
            "--hdr keep needs ten bits a colour, and players of h264 take eight.",
            remedy="Add --codec hevc or --codec av1, or leave it at --hdr tone-map.",
        )
    if codec == "av1" and hardware == "none" and not preset.isdigit():
        raise ParameterError(
            f"--preset {preset} is not one of av1's.", remedy="They are numbers, from 0 to 13."
        )
    return preset, crf, ("tone-map" if codec == "h264" else "keep") if hdr == "auto" else hdr


def coding_of(
    film: Film, codec: str, preset: str, crf: int, threads: int, hdr: str, hardware: str = "none"
) -> Coding:
    """How this film is encoded: in ten bits where it has more than eight and the codec allows."""
    tone_map = is_mapped(film, hdr)
    bits = 10 if film.bits > 8 and codec != "h264" and not tone_map else 8
    encoder = ENCODERS[codec] if hardware == "none" else f"{codec}_{hardware}"
    return Coding(codec, encoder, preset, crf, threads, bits, tone_map)


def is_mapped(film: Film, hdr: str) -> bool:
    """Whether the film leaves its range for that of every screen."""
    return film.is_hdr and hdr == "tone-map"


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
