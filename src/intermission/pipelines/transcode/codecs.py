"""Encoders: which one writes which codec, its settings, and the codec string for players."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from intermission.errors import EnvironmentFault, ParameterError
from intermission.media.video_info import EncoderSettings, VideoTrack

ENCODERS = {"h264": "libx264", "hevc": "libx265", "av1": "libsvtav1"}
_USUAL = {"h264": ("veryfast", 23), "hevc": ("veryfast", 26), "av1": ("10", 35)}
"""Preset and constant rate factor: about equally good, at about the speed of decoding."""
_HARDWARE_PRESET = "p4"
BY_CODEC = -1
"""Stands for the default rate factor of the codec."""


def usual(
    codec: str, preset: str, crf: int, hdr: str, hardware: str = "none"
) -> tuple[str, int, str]:
    """Preset, rate factor and treatment of HDR, with the codec's defaults filled in."""
    preset = preset or (_USUAL[codec][0] if hardware == "none" else _HARDWARE_PRESET)
    crf = _USUAL[codec][1] if crf == BY_CODEC else crf
    if hdr == "keep" and codec == "h264":
        raise ParameterError(
            "--hdr keep needs ten bits per colour, and h264 players support eight.",
            remedy="Add --codec hevc or --codec av1, or use --hdr tone-map.",
        )
    if codec == "av1" and hardware == "none" and not preset.isdigit():
        raise ParameterError(
            f"--preset {preset} is not a preset of av1.", remedy="Use a number from 0 to 13."
        )
    return preset, crf, ("tone-map" if codec == "h264" else "keep") if hdr == "auto" else hdr


def settings_of(
    video: VideoTrack,
    codec: str,
    preset: str,
    crf: int,
    threads: int,
    hdr: str,
    hardware: str = "none",
) -> EncoderSettings:
    """The settings for this video: ten bits where it has more than eight and the codec allows."""
    tone_map = is_mapped(video, hdr)
    bits = 10 if video.bits > 8 and codec != "h264" and not tone_map else 8
    encoder = ENCODERS[codec] if hardware == "none" else f"{codec}_{hardware}"
    return EncoderSettings(codec, encoder, preset, crf, threads, bits, tone_map)


def is_mapped(video: VideoTrack, hdr: str) -> bool:
    """Whether HDR is mapped to the range that every screen shows."""
    return video.is_hdr and hdr == "tone-map"


@cache
def versions() -> str:
    """The version of the library that contains the encoders."""
    try:
        return f"av {version('av')}"
    except PackageNotFoundError as e:
        raise EnvironmentFault(
            "encoding needs PyAV, which is not installed.",
            remedy="Install it: pip install 'intermission[media]'.",
        ) from e


def codecs_of(init: bytes) -> str:
    """The codec string of a track (RFC 6381), from its initialization segment."""
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
