"""The decoders we let near a file: those of recordings people have, out of libav's 400."""

from __future__ import annotations

from typing import Any

_VIDEO = """
    h264 hevc av1 libdav1d vp8 vp9 vp6 vp6f vp6a vvc mpeg1video mpeg2video mpeg4 msmpeg4v1
    msmpeg4v2 msmpeg4 h261 h263 h263i h263p flv wmv1 wmv2 wmv3 vc1 theora mjpeg mjpegb png
    prores dnxhd dvvideo ffv1 huffyuv ffvhuff utvideo rawvideo cinepak svq1 svq3 rv10 rv20
    rv30 rv40 indeo3 indeo4 indeo5 msvideo1 qtrle rpza jpeg2000 cfhd magicyuv lagarith
"""
_AUDIO = """
    aac aac_latm mp1 mp1float mp2 mp2float mp3 mp3float ac3 eac3 dca truehd mlp opus libopus
    vorbis flac alac wmav1 wmav2 wmapro wmalossless wmavoice amrnb amrwb libopencore_amrnb
    libopencore_amrwb speex gsm gsm_ms g722 g723_1 g726 g726le g729 ilbc wavpack tta ape cook
    real_144 real_288 sipr nellymoser dvaudio qdm2 adpcm_ms adpcm_ima_wav adpcm_ima_qt
    adpcm_swf adpcm_yamaha pcm_alaw pcm_mulaw pcm_u8 pcm_s8 pcm_s16le pcm_s16be pcm_s24le
    pcm_s24be pcm_s32le pcm_s32be pcm_s64le pcm_s64be pcm_u16le pcm_u16be pcm_f32le pcm_f32be
    pcm_f64le pcm_f64be pcm_bluray pcm_dvd pcm_s16le_planar pcm_s16be_planar s302m
"""

ALLOWED = frozenset(f"{_VIDEO} {_AUDIO}".split())


def name_of(stream: Any) -> str:
    """The codec's name; libav's decoder for MP3, say, is called "mp3float"."""
    return stream.codec_context.codec.canonical_name


def is_allowed(stream: Any) -> bool:
    return stream.codec_context is not None and stream.codec_context.name in ALLOWED
