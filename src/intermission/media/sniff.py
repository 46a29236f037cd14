"""What a file is, from its own first bytes: never from its name.

The answer forces libav's demuxer, so that a text can never be taken for a playlist and open
other files. Whatever is not plainly a container or an audio stream is refused by name.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from intermission.media import mpegaudio

HEAD_BYTES = 4096

Timing = Literal["claimed", "counted", "stamped"]
"""How the duration is known: the header claims it, the packets must be counted, or libav reads
it off the first and last time stamps."""


@dataclass(frozen=True)
class Kind:
    """A kind of media file, and libav's short name of the demuxer that reads it."""

    demuxer: str
    title: str
    timing: Timing = "claimed"


@dataclass(frozen=True)
class NotMedia:
    """What was found instead, completing the sentence "it is ..."."""

    found: str


MOV = Kind("mov", "MP4 or QuickTime")
MPEGTS = Kind("mpegts", "MPEG transport stream", "stamped")
MP3 = Kind("mp3", "MP3", "counted")
AAC = Kind("aac", "AAC", "counted")
FLAC = Kind("flac", "FLAC")
WAV = Kind("wav", "WAV")

_MEDIA: tuple[tuple[bytes, Kind], ...] = (
    (b"\x1a\x45\xdf\xa3", Kind("matroska", "Matroska or WebM")),
    (b"\x00\x00\x01\xba", Kind("mpeg", "MPEG program stream", "stamped")),
    (b"OggS", Kind("ogg", "Ogg")),
    (b"fLaC", FLAC),
    (b"FLV\x01", Kind("flv", "Flash video")),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", Kind("asf", "Windows Media")),
    (b"caff", Kind("caf", "Core Audio")),
    (b".snd", Kind("au", "AU")),
    (b"#!AMR", Kind("amr", "AMR", "counted")),
    (b"wvpk", Kind("wv", "WavPack")),
    (b"TTA1", Kind("tta", "True Audio")),
    (b"MAC ", Kind("ape", "Monkey's Audio")),
    (b".RMF", Kind("rm", "RealMedia")),
    (b"riff\x2e\x91\xcf\x11", Kind("w64", "Sony Wave64")),
    (b"\x06\x0e\x2b\x34\x02\x05\x01\x01\x0d\x01\x02", Kind("mxf", "MXF")),
    (b"\x0b\x77", Kind("ac3", "AC-3", "counted")),
    (b"\x7f\xfe\x80\x01", Kind("dts", "DTS", "counted")),
)

_FORMS = {  # bytes 0 to 4 and 8 to 12
    (b"RIFF", b"WAVE"): WAV,
    (b"RF64", b"WAVE"): WAV,
    (b"BW64", b"WAVE"): WAV,
    (b"RIFF", b"AVI "): Kind("avi", "AVI"),
    (b"FORM", b"AIFF"): Kind("aiff", "AIFF"),
    (b"FORM", b"AIFC"): Kind("aiff", "AIFF"),
}

_OTHER: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"BM", "a BMP image"),
    (b"II*\x00", "a TIFF image"),
    (b"MM\x00*", "a TIFF image"),
    (b"8BPS", "a Photoshop image"),
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a ZIP archive or an Office document"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an Office document"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ\x00", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"Rar!", "a RAR archive"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a Windows program"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"\x00\x00\x00\x01", "a bare video stream without a container"),
    (b"\x00\x00\x01\xb3", "a bare MPEG video stream without a container"),
)

_LEAD = r"(?:<!--(?:(?!-->).)*-->|<\?xml[^>]*>|\s)*"
"""What may stand before the first element of a document."""

_TEXTS: tuple[tuple[str, str], ...] = (
    (r"#EXTM3U", "an HLS playlist"),
    (r"ffconcat version", "a concat script"),
    (r"(?:#[^\n]*\n|\s)*file\s+\S", "a concat script"),
    (r"\[playlist\]", "a PLS playlist"),
    (rf"{_LEAD}<MPD\b", "a DASH manifest"),
    (rf"{_LEAD}<svg\b", "an SVG image"),
    (rf"{_LEAD}<(?:!doctype html|html|head|body)\b", "a web page"),
    (r"<\?xml", "an XML document"),
    (r"WEBVTT", "WebVTT subtitles"),
    (r"1\r?\n\d\d:\d\d:\d\d,\d{3} -->", "SRT subtitles"),
    (r"v=0\r?\n", "an SDP session description"),
    (r"%PDF", "a PDF document"),
    (r"version https://git-lfs", "a Git LFS pointer, not the file it points to"),
    (r"[\[{]\s*[\"\[{]", "a JSON document"),
)

_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"styp", b"moof", b"sidx", b"pnot")
_PICTURE_BRANDS = (b"heic", b"heix", b"heim", b"mif1", b"avif", b"crx ")

_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")

ReadAt = Callable[[int, int], bytes]


def sniff(read_at: ReadAt) -> Kind | NotMedia:
    """What the file is that `read_at(offset, length)` reads."""
    head = read_at(0, HEAD_BYTES)
    if not head:
        return NotMedia("empty, zero bytes long")
    if not any(head):
        return NotMedia("a run of zero bytes, as an unfinished copy or download leaves it")
    text = _text(head)
    if text is not None:
        return NotMedia(_name_of_text(text.lstrip()))
    form = _FORMS.get((head[:4], head[8:12]))
    if form is not None:
        return form
    if head[4:8] in _BOXES:
        return _boxed(head)
    for magic, kind in _MEDIA:
        if head.startswith(magic):
            return kind
    for magic, found in _OTHER:
        if head.startswith(magic):
            return NotMedia(found)
    if head[:4] == b"RIFF":
        return NotMedia("a WebP image" if head[8:12] == b"WEBP" else "a RIFF file of another kind")
    if head[257:262] == b"ustar":
        return NotMedia("a tar archive")
    return _streamed(head, read_at)


def _boxed(head: bytes) -> Kind | NotMedia:
    if head[4:8] == b"ftyp" and head[8:12] in _PICTURE_BRANDS:
        return NotMedia("a HEIF or raw image")
    return MOV


def _streamed(head: bytes, read_at: ReadAt) -> Kind | NotMedia:
    """Streams are known by a pattern that repeats; texts by holding nothing but characters."""
    for first, every in ((0, 188), (4, 192), (0, 204)):
        if len(head) > first + 2 * every and set(head[first::every]) == {0x47}:
            return MPEGTS
    start = mpegaudio.after_tags(read_at)
    body = read_at(start, HEAD_BYTES) if start else head
    if start and body.startswith(b"fLaC"):
        return FLAC
    if mpegaudio.is_adts(body):
        return AAC
    if mpegaudio.is_mpeg(body) or (start and not body.strip(b"\0")):
        return MP3
    return NotMedia(f"of no known kind (it begins with {head[:8].hex(' ')})")


def _text(head: bytes) -> str | None:
    """The head as text, if it is nothing else. It may end within a character."""
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(head, len(head) < HEAD_BYTES)
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(text) else text


def _name_of_text(text: str) -> str:
    for pattern, found in _TEXTS:
        if re.match(pattern, text, re.IGNORECASE | re.DOTALL):
            return found
    return "a text"
