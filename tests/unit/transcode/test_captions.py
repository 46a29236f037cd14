"""Subtitles: found when the job is made, and only where they are what they should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from intermission import Source
from intermission.errors import ParameterError
from intermission.pipelines.transcode.captions import language_of, text_of

TEXT = "WEBVTT\n\n00:01.000 --> 00:02.000\nHello\n"


def test_a_file_stands_for_its_text(tmp_path: Path) -> None:
    path = tmp_path / "a.vtt"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    assert text_of(str(path), None) == TEXT
    assert text_of(TEXT, None) == TEXT, "a job that is made again has the text itself"
    assert text_of("", None) == ""


def test_those_beside_the_source_are_found(tmp_path: Path) -> None:
    source = Source((tmp_path / "talk.mp4").as_uri(), "f")
    assert text_of("auto", source) == ""
    path = tmp_path / "transcripts" / "talk" / "talk.vtt"
    path.parent.mkdir(parents=True)
    path.write_text(TEXT)
    assert text_of("auto", source) == TEXT
    assert text_of("auto", None) == text_of("auto", Source("s3://b/talk.mp4", "f")) == ""


@pytest.mark.parametrize("name", ["none.vtt", "a.srt", "binary.vtt", "other.vtt"])
def test_anything_else_is_refused_in_the_same_words(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.srt").write_text(TEXT)
    (tmp_path / "binary.vtt").write_bytes(b"\xff\xfe")
    (tmp_path / "other.vtt").write_text("root:x:0:0")
    with pytest.raises(ParameterError, match=f"{name} is not a WebVTT file"):
        text_of(str(tmp_path / name), None)


@pytest.mark.parametrize(
    ("name", "text", "language"),
    [
        ("talk.vtt", TEXT, ""),
        ("talk.de.vtt", TEXT, "de"),
        ("talk.ger.vtt", TEXT, "de"),
        ("talk.final.vtt", TEXT, ""),
        ("talk.vtt", TEXT.replace("WEBVTT", "WEBVTT\nKind: captions\nLanguage: pt-br"), "pt-BR"),
        ("talk.de.vtt", TEXT.replace("WEBVTT", "WEBVTT\nLanguage: fr"), "fr"),
        ("talk.vtt", f"{TEXT}\nLanguage: fr\n", ""),
    ],
)
def test_a_file_tells_its_language(name: str, text: str, language: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert language_of(str(tmp_path / name), text, None) == language


def test_a_transcript_has_the_language_that_was_transcribed(tmp_path: Path) -> None:
    source = Source((tmp_path / "talk.mp4").as_uri(), "f")
    assert language_of("auto", TEXT, source) == ""
    path = tmp_path / "transcripts" / "talk" / "talk.json"
    path.parent.mkdir(parents=True)
    for document, language in (('{"language": "en"}', "en"), ("[1]", ""), ("{", "")):
        path.write_text(document)
        assert language_of("auto", TEXT, source) == language
