"""Which files of a folder are media, by their names."""

from __future__ import annotations

_VIDEO = "mp4 m4v mov mkv webm avi mpg mpeg m2v ts mts m2ts wmv flv f4v 3gp 3g2 ogv mxf vob dv"
_AUDIO = "mp3 m4a m4b aac wav wave flac ogg oga opus wma aif aiff amr ac3 eac3 mka caf au"

VIDEO_FILES = tuple(f"*.{suffix}" for suffix in _VIDEO.split())
MEDIA_FILES = (*VIDEO_FILES, *(f"*.{suffix}" for suffix in _AUDIO.split()))
