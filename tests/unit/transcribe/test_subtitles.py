"""Cues and files: lines that fit, times that can be read, formats that parse."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given
from pydantic import TypeAdapter, ValidationError

from intermission.pipelines.transcribe.formats import Formats, Transcript, write
from intermission.pipelines.transcribe.subtitles import (
    CUE_MAX_MS,
    LINE_MAX,
    LINES_MAX,
    broken,
    cues,
    segments,
    text_of,
)
from intermission.ports.speech import Word

SENTENCE = "You see, I teach entrepreneurship, and we all know that most new ventures fail."


def spoken(text: str, start_ms: int = 0, word_ms: int = 300) -> list[Word]:
    return [
        Word(start_ms + n * word_ms, start_ms + n * word_ms + word_ms - 20, f" {one}", 0.5)
        for n, one in enumerate(text.split())
    ]


WORDS = st.builds(
    lambda text, times, end: text * times + end,
    st.text("abcde-", min_size=1, max_size=60),
    st.sampled_from([1, 1, 1, 7]),
    st.sampled_from(["", ",", "."]),
)


@st.composite
def speech(draw: st.DrawFn) -> list[Word]:
    words: list[Word] = []
    at_ms = 0
    for text in draw(st.lists(WORDS, max_size=40)):
        at_ms += draw(st.integers(0, 3000))
        took_ms = draw(st.integers(0, 1500))
        words.append(Word(at_ms, at_ms + took_ms, f" {text}", None))
        at_ms += took_ms
    return words


@given(speech())
def test_cues_fit_on_a_screen_and_hold_every_word(words: list[Word]) -> None:
    found = cues(words)
    for cue in found:
        assert len(cue.lines) <= LINES_MAX
        assert all(0 < len(line) <= LINE_MAX for line in cue.lines)
        assert 0 < cue.end_ms - cue.start_ms <= CUE_MAX_MS
    assert all(one.start_ms <= other.start_ms for one, other in pairwise(found))
    shown = "".join(line for cue in found for line in cue.lines)
    assert shown.replace(" ", "") == text_of(words).replace(" ", "")


def test_a_short_cue_stays_until_it_can_be_read_or_the_next_begins() -> None:
    words = [Word(0, 300, " Yes.", 1.0), Word(5000, 5200, " No.", 1.0), Word(5600, 5700, " Ah.", 1)]
    assert [(cue.start_ms, cue.end_ms) for cue in cues(words)] == [
        (0, 1000),
        (5000, 5560),
        (5600, 6600),
    ]


def test_a_long_sentence_is_broken_after_a_clause() -> None:
    first, second = cues(spoken(f"{SENTENCE[:-1]}, and innovators need all the luck they can get."))
    assert " ".join(first.lines).endswith("fail,")
    assert " ".join(second.lines).startswith("and innovators")


def test_two_lines_are_of_nearly_equal_length() -> None:
    assert broken("Luck is defined as success or failure apparently") == [
        "Luck is defined as success",
        "or failure apparently",
    ]
    assert broken("Short enough.") == ["Short enough."]


def test_sentences_end_at_their_end_or_at_a_pause() -> None:
    words = spoken("One two. Three") + spoken("four five", start_ms=9000)
    assert [text_of(one) for one in segments(words)] == ["One two.", "Three", "four five"]


def files(tmp_path: Path, words: list[Word], formats: str = "all") -> dict[str, str]:
    transcript = Transcript(words, "en", 12_000, "engine@1", "model@2", "talk.mp4", "abc")
    written = write(transcript, formats, lambda name: tmp_path / name)
    return {path.suffix[1:]: path.read_text(encoding="utf-8") for path in written}


def test_every_format_says_the_same(tmp_path: Path) -> None:
    found = files(tmp_path, spoken("Tom & Jerry <3 film. Really?", start_ms=3_723_004))
    assert found["txt"] == "Tom & Jerry <3 film.\nReally?\n"
    assert found["srt"].startswith("1\n01:02:03,004 --> 01:02:04,464\nTom & Jerry <3 film.\n\n2\n")
    assert found["vtt"].startswith(
        "WEBVTT\n\n01:02:03.004 --> 01:02:04.464\nTom &amp; Jerry &lt;3 film.\n\n"
    )
    assert found["tsv"].splitlines()[:2] == [
        "start\tend\ttext",
        "3723004\t3724484\tTom & Jerry <3 film.",
    ]
    document = json.loads(found["json"])
    assert document["segments"][1]["words"] == [
        {"start_ms": 3724504, "end_ms": 3724784, "text": "Really?", "confidence": 0.5}
    ]
    assert (document["language"], document["model"]) == ("en", "model@2")
    assert document["source"] == {"name": "talk.mp4", "fingerprint": "abc"}


@pytest.mark.parametrize("form", ["srt", "vtt"])
def test_a_word_longer_than_a_cue_goes_on_in_the_next(form: str, tmp_path: Path) -> None:
    longest = "abcdefghij" * 300
    words = [
        *spoken("Listen to"),
        Word(600, 60_600, f" {longest}", 0.5),
        Word(61_000, 61_500, " now.", 1),
    ]
    made = re.split(r"\n\n", files(tmp_path, words, form)[form].removeprefix("WEBVTT\n\n").strip())
    texts = [
        [line for line in cue.splitlines() if not re.search(r"-->|^\d+$", line)] for cue in made
    ]
    assert all(len(lines) <= LINES_MAX for lines in texts)
    assert max(len(line) for lines in texts for line in lines) <= LINE_MAX
    shown = "".join(line for lines in texts for line in lines)
    assert shown.replace(" ", "") == f"Listento{longest}now."


def test_the_time_of_a_long_word_is_shared_by_its_cues() -> None:
    found = cues([Word(1000, 11_000, " " + "a" * 420, 0.5)])
    assert [cue.start_ms for cue in found] == [1000, 3000, 5000, 7000, 9000]
    assert found[-1].end_ms == 13_941


def test_silence_has_files_without_words(tmp_path: Path) -> None:
    found = files(tmp_path, [])
    assert (found["txt"], found["srt"], found["vtt"]) == ("", "", "WEBVTT\n\n")
    assert json.loads(found["json"])["segments"] == []


def test_formats_are_checked_and_put_in_one_order(tmp_path: Path) -> None:
    parse = TypeAdapter(Formats).validate_python
    assert parse("VTT, srt,srt") == "srt,vtt"
    assert parse("txt,srt,vtt,tsv,json") == parse("srt,all") == "all"
    with pytest.raises(ValidationError, match="no format docx"):
        parse("srt,docx")
    assert list(files(tmp_path, [], parse("json,srt"))) == ["srt", "json"]


def test_cues_of_the_srt_parse(tmp_path: Path) -> None:
    text = files(tmp_path, spoken(" ".join([SENTENCE] * 4)))["srt"]
    blocks = text.strip().split("\n\n")
    assert [block.split("\n")[0] for block in blocks] == [str(n + 1) for n in range(len(blocks))]
    stamp = r"\d\d:\d\d:\d\d,\d{3}"
    assert all(re.fullmatch(f"{stamp} --> {stamp}", block.split("\n")[1]) for block in blocks)
