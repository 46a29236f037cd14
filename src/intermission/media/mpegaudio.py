"""MPEG audio and ADTS frames, and the ID3 tags before them: enough to know one when seen,
and how long the first frame says that all of them are.

These streams have no magic number, only a pattern of eleven bits, which random bytes hold too.
So a stream is one only where each frame is followed by the next.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

ReadAt = Callable[[int, int], bytes]

_TAGS_MAX = 8
"""Tags may follow each other, but not without end."""
_SYNC_WITHIN_BYTES = 2048
"""How much may stand before the first frame, as in a stream cut from a longer one."""

_RATES_HZ = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
_KBPS = {  # (is MPEG-1, layer)
    (True, 1): (32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, 2): (32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, 3): (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, 2): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, 3): (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}


def id3_bytes(head: bytes) -> int:
    """Length of the ID3 tag that starts here; zero when none does."""
    if len(head) < 10 or head[:3] != b"ID3" or max(head[6:10]) > 127:
        return 0
    length = head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9]
    footer = 10 if head[5] & 0x10 else 0
    return 10 + length + footer


def after_tags(read_at: ReadAt) -> int:
    """Where the ID3 tags at the beginning end."""
    start = 0
    for _ in range(_TAGS_MAX):
        tag = id3_bytes(read_at(start, 10))
        if not tag:
            break
        start += tag
    return start


def claimed_s(read_at: ReadAt) -> Fraction | None:
    """How long an MP3 file was when it was written; None where its first frame does not tell.

    That frame holds no audio, but the number of frames that do: Xing's header, which is called
    Info where the bitrate is constant, or Fraunhofer's VBRI.
    """
    start = after_tags(read_at)
    body = read_at(start, _SYNC_WITHIN_BYTES)
    first = next((at for at in range(len(body)) if _mpeg_frame_bytes(body[at : at + 4])), None)
    if first is None:
        return None
    head = read_at(start + first, 64)
    version, is_mono = head[1] >> 3 & 3, head[3] >> 6 == 3
    is_v1 = version == 3
    xing = 4 + ((17 if is_mono else 32) if is_v1 else (9 if is_mono else 17))
    frames = 0
    if head[xing : xing + 4] in (b"Xing", b"Info") and head[xing + 7] & 1:
        frames = int.from_bytes(head[xing + 8 : xing + 12], "big")
    elif head[36:40] == b"VBRI":
        frames = int.from_bytes(head[50:54], "big")
    samples = frames * (1152 if is_v1 else 576)
    return Fraction(samples, _RATES_HZ[version][head[2] >> 2 & 3]) if frames else None


def is_mpeg(body: bytes) -> bool:
    """Whether frames of MPEG audio (MP3 and the older layers) follow each other here."""
    return any(
        _follow(body, start, _mpeg_frame_bytes)
        for start in range(min(len(body), _SYNC_WITHIN_BYTES))
        if body[start] == 0xFF
    )


def is_adts(body: bytes) -> bool:
    """Whether frames of AAC with ADTS headers follow each other here."""
    return _follow(body, 0, _adts_frame_bytes)


def _follow(body: bytes, start: int, frame_bytes: Callable[[bytes], int]) -> bool:
    """Two frames in a row, or one that is all there is."""
    first = frame_bytes(body[start : start + 8])
    if not first:
        return False
    after = body[start + first :]
    return bool(frame_bytes(after[:8])) if len(after) >= 8 else start == 0


def _mpeg_frame_bytes(head: bytes) -> int:
    """Length of the MPEG audio frame with this header; zero when it is none."""
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        return 0
    version, layer = head[1] >> 3 & 3, 4 - (head[1] >> 1 & 3)
    bitrate, rate, padding = head[2] >> 4, head[2] >> 2 & 3, head[2] >> 1 & 1
    if version == 1 or layer == 4 or bitrate in (0, 15) or rate == 3:
        return 0
    is_v1 = version == 3
    bps, rate_hz = _KBPS[is_v1, layer][bitrate - 1] * 1000, _RATES_HZ[version][rate]
    if layer == 1:
        return (12 * bps // rate_hz + padding) * 4
    return (144 if is_v1 or layer == 2 else 72) * bps // rate_hz + padding


def _adts_frame_bytes(head: bytes) -> int:
    """Length of the ADTS frame with this header; zero when it is none."""
    if len(head) < 7 or head[0] != 0xFF or head[1] & 0xF6 != 0xF0 or head[2] >> 2 & 15 > 12:
        return 0
    length = (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5
    return length if length >= 7 else 0
