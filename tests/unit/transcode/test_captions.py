"""Subtitles: found when the job is made, and only where they are what they should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from intermission import Source
from intermission.errors import ParameterError
from intermission.pipelines.transcode.captions import text_of

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
