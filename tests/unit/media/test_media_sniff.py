"""What a file is by its first bytes, whatever its name says."""

from __future__ import annotations

import pytest

from intermission.media.sniff import Kind, NotMedia, sniff

MP3_FRAME = b"\xff\xfb\x90\x00".ljust(417, b"\x55")  # 128 kbit/s at 44.1 kHz
ADTS_FRAME = bytes([0xFF, 0xF1, 0x50, 0x80, 0x02, 0x1F, 0xFC]).ljust(16, b"\x11")
ID3 = b"ID3\x04\x00\x00\x00\x00\x40\x00".ljust(10 + 0x2000, b"\x00")
TS_PACKET = b"G".ljust(188, b"\xff")

MEDIA = {
    "mp4": (b"\x00\x00\x00\x20ftypisom\x00\x00\x02\x00", "mov"),
    "old quicktime": (b"\x00\x00\x00\x08wide\x00\x00\x10\x00mdat\x00", "mov"),
    "fragment": (b"\x00\x00\x00\x18styp\x00", "mov"),
    "matroska": (b"\x1a\x45\xdf\xa3\x93\x42\x82\x88matroska", "matroska"),
    "transport stream": (TS_PACKET * 5, "mpegts"),
    "blu-ray stream": ((b"\x00\x01\x02\x03" + TS_PACKET) * 5, "mpegts"),
    "program stream": (b"\x00\x00\x01\xba\x44\x00", "mpeg"),
    "avi": (b"RIFF\x10\x00\x00\x00AVI LIST\x00", "avi"),
    "wav": (b"RIFF\x10\x00\x00\x00WAVEfmt \x00", "wav"),
    "rf64": (b"RF64\xff\xff\xff\xffWAVEds64\x00", "wav"),
    "mp3": (MP3_FRAME * 3, "mp3"),
    "mp3 in mid-frame": (b"\x55" * 100 + MP3_FRAME * 3, "mp3"),
    "mp3 behind a tag": (ID3 + MP3_FRAME * 3, "mp3"),
    "mp3 behind two tags": (ID3 + ID3 + MP3_FRAME * 3, "mp3"),
    "adts": (ADTS_FRAME * 3, "aac"),
    "adts behind a tag": (ID3 + ADTS_FRAME * 3, "aac"),
    "flac": (b"fLaC\x00\x00\x00\x22", "flac"),
    "flac behind a tag": (ID3 + b"fLaC\x00\x00\x00\x22", "flac"),
    "ogg": (b"OggS\x00\x02\x00", "ogg"),
    "flv": (b"FLV\x01\x05\x00", "flv"),
    "asf": (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9", "asf"),
    "aiff": (b"FORM\x00\x00\x10\x00AIFFCOMM\x00", "aiff"),
    "caf": (b"caff\x00\x01\x00\x00desc", "caf"),
    "au": (b".snd\x00\x00\x00\x18", "au"),
    "amr": (b"#!AMR\n\x3c\x00\x01", "amr"),
}

NOT_MEDIA = {
    "nothing": (b"", "zero bytes"),
    "zeros": (bytes(5000), "a run of zero bytes"),
    "hls": (b"#EXTM3U\n#EXT-X-VERSION:3\n", "an HLS playlist"),
    "hls with a mark": (b"\xef\xbb\xbf#EXTM3U\n", "an HLS playlist"),
    "hls in utf-16": ("\n#EXTM3U\n".encode("utf-16"), "an HLS playlist"),
    "concat": (b"ffconcat version 1.0\nfile 'a'\n", "a concat script"),
    "bare concat": (b"# mine\n\nfile '/etc/passwd'\n", "a concat script"),
    "dash": (b'<?xml version="1.0"?>\n<!-- x --><MPD xmlns="y">', "a DASH manifest"),
    "pls": (b"[playlist]\nFile1=a\n", "a PLS playlist"),
    "sdp": (b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\n", "an SDP session description"),
    "html": (b"<!-- a --><!DOCTYPE html><html>", "a web page"),
    "json": (b'{"error": "not found"}', "a JSON document"),
    "text": ("Grüße, BMW".encode(), "a text"),
    "text cut in a letter": ("ü".encode() * 3000, "a text"),
    "text like a image": (b"BM is how it begins", "a text"),
    "png": (b"\x89PNG\r\n\x1a\n\x00", "a PNG image"),
    "jpeg": (b"\xff\xd8\xff\xe0\x00\x10JFIF", "a JPEG image"),
    "webp": (b"RIFF\x10\x00\x00\x00WEBPVP8 \x00", "a WebP image"),
    "heic": (b"\x00\x00\x00\x18ftypheic\x00", "a HEIF or raw image"),
    "pdf": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\x00", "a PDF document"),
    "zip": (b"PK\x03\x04\x14\x00", "a ZIP archive"),
    "tar": (b"a".ljust(257, b"\x00") + b"ustar\x00", "a tar archive"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
    "noise": (b"\x81\x12\x99\x03\x07\xff\xfb", "of no known kind (it begins with 81 12 99"),
    "one frame header in noise": (b"\x81" * 50 + b"\xff\xfb\x90\x00" + b"\x81" * 999, "no known"),
}


def sniffed(data: bytes) -> Kind | NotMedia:
    return sniff(lambda offset, length: data[offset : offset + length])


@pytest.mark.parametrize(("data", "demuxer"), MEDIA.values(), ids=MEDIA)
def test_media_is_known_by_its_bytes(data: bytes, demuxer: str) -> None:
    kind = sniffed(data)
    assert isinstance(kind, Kind)
    assert kind.demuxer == demuxer


@pytest.mark.parametrize(("data", "found"), NOT_MEDIA.values(), ids=NOT_MEDIA)
def test_everything_else_is_named(data: bytes, found: str) -> None:
    kind = sniffed(data)
    assert isinstance(kind, NotMedia)
    assert found in kind.found


@pytest.mark.parametrize("text", [b"<!-- -->" * 600, b"<!--" * 1000, b"#\n" * 2000, b" \n" * 2000])
def test_no_text_keeps_the_patterns_busy(text: bytes) -> None:
    assert sniffed(text) == NotMedia("a text")


def test_tags_without_end_are_not_followed() -> None:
    asked: list[int] = []

    def read_at(offset: int, length: int) -> bytes:
        asked.append(offset)
        return ID3[:length]

    assert isinstance(sniff(read_at), Kind | NotMedia)
    assert len(asked) < 20
