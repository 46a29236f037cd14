"""MPEG audio and ADTS frames, and the ID3 tags before them: enough to know one when seen.

These streams have no magic number, only a pattern of eleven bits, which random bytes hold too.
So a stream is one only where each frame is followed by the next.
"""

from __future__ import annotations

from collections.abc import Callable

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
