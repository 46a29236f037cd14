"""The speech contract over every engine, and what an engine behind HTTP does about troubles."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import cache
from pathlib import Path

import pytest

import samples
from intermission.backends.speech import engine
from intermission.backends.speech.http import HttpSpeech
from intermission.errors import EnvironmentFault, ParameterError, Permanent, TaskError
from intermission.pipelines.transcribe.audio_file import length_ms, read_audio
from intermission.ports.speech import AUTO, Speech, Weights
from intermission.testing.speech import SpeechContract
from servers.speech import KEY, SpeechServer, serving

READING, TEXT = samples.readings()[0]


@cache
def reading() -> bytes:
    return read_audio(READING, 0, length_ms(READING))


@pytest.fixture(scope="session")
def server() -> Iterator[SpeechServer]:
    with serving() as running:
        yield running


@pytest.fixture(autouse=True)
def address(server: SpeechServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.troubles.clear()
    server.documents.clear()
    server.shape = "words"
    monkeypatch.setenv("INTERMISSION_SPEECH_URL", server.url)
    monkeypatch.setenv("INTERMISSION_SPEECH_API_KEY", KEY)


class ReadingContract(SpeechContract):
    text = TEXT

    def audio(self) -> bytes:
        return reading()


class TestFasterWhisper(ReadingContract):
    def load(self) -> Speech:
        found = engine("faster-whisper")
        return found.load(found.identify("", "en"))


class TestHttp(ReadingContract):
    def load(self) -> Speech:
        found = engine("http")
        return found.load(found.identify("tiny.en", AUTO))


class TestHttpWithoutWords(TestHttp):
    """Servers that time their segments alone."""

    @pytest.fixture(autouse=True)
    def segments(self, server: SpeechServer, address: None) -> None:
        server.shape = "segments"


def transcribe(speech: Speech, key: str = "") -> str:
    heard = speech.transcribe(reading(), language="en", beam_size=2, key=key)
    return "".join(word.text for word in heard.words)


def test_a_call_has_the_tasks_key_and_what_was_asked_for(server: SpeechServer) -> None:
    text = transcribe(HttpSpeech("some-model"), key="task-7")
    assert text.strip().endswith(".")  # words come without punctuation, and get it back
    assert server.calls["task-7"] == 1
    asked = server.fields[-1]
    assert (asked["model"], asked["language"]) == ("some-model", "en")
    assert asked["response_format"] == "verbose_json"


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": "99999999"}, 3600.0),
    ],
)
def test_it_waits_as_long_as_it_is_told(
    server: SpeechServer, headers: dict[str, str], wait_s: float | None
) -> None:
    server.troubles = [(429, headers)]
    with pytest.raises(TaskError, match="answered 429") as told:
        transcribe(HttpSpeech("tiny.en"))
    assert told.value.retryable
    assert told.value.retry_after_s == wait_s


def test_a_date_to_wait_for_is_understood(server: SpeechServer) -> None:
    at = datetime.now(UTC) + timedelta(seconds=60)
    server.troubles = [(503, {"Retry-After": format_datetime(at, usegmt=True)})]
    with pytest.raises(TaskError) as told:
        transcribe(HttpSpeech("tiny.en"))
    assert told.value.retry_after_s == pytest.approx(60, abs=10)


def test_what_no_attempt_can_mend_is_permanent(server: SpeechServer) -> None:
    server.troubles = [(400, {})]
    with pytest.raises(Permanent, match="refused the audio \\(400\\)"):
        transcribe(HttpSpeech("tiny.en"))


def test_a_denied_key_is_the_machines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERMISSION_SPEECH_API_KEY", "wrong")
    with pytest.raises(EnvironmentFault, match=r"denied us \(401\).*SPEECH_API_KEY"):
        transcribe(HttpSpeech("tiny.en"))


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({"choices": []}, "text: Field required"),
        ([{"text": "one"}], "found a list"),
        ("one two", "found a str"),
        (None, "found null"),
        ({"text": None, "words": [{"word": "one", "start": 0, "end": 1}]}, "text: Input should"),
        ({"text": "one", "words": ["one"]}, "words.0: Input should"),
        ({"text": "one", "words": [{"word": "one", "end": 1}]}, "words.0.start: Field required"),
        ({"text": "one", "words": [{"word": "one", "start": 0, "end": 1e999}]}, "words.0.end"),
        ({"text": "one", "segments": [{"start": 0, "end": 1}]}, "segments.0.text: Field required"),
        ({"text": "one two"}, "text without words or segments"),
    ],
)
def test_an_answer_that_is_no_transcription_is_said_to_be_none(
    server: SpeechServer, document: object, found: str
) -> None:
    server.documents = [document]
    expected = f"expected a transcription in verbose_json.*{re.escape(found)}"
    with pytest.raises(TaskError, match=expected) as told:
        transcribe(HttpSpeech("tiny.en"))
    assert told.value.retryable


def test_an_answer_without_a_language_will_do_where_one_was_given(server: SpeechServer) -> None:
    server.documents = [{"text": "One.", "words": [{"word": "One", "start": 0, "end": 1}]}]
    heard = HttpSpeech("tiny.en").transcribe(reading(), language="de", beam_size=1, key="")
    assert (heard.language, [word.text for word in heard.words]) == ("de", ["One."])


def test_an_answer_without_a_language_is_refused_where_it_was_to_be_detected(
    server: SpeechServer,
) -> None:
    server.documents = [{"text": "One.", "words": [{"word": "One", "start": 0, "end": 1}]}]
    with pytest.raises(Permanent, match=r"without a language.*--language"):
        HttpSpeech("tiny.en").transcribe(reading(), language=AUTO, beam_size=1, key="")


def test_silence_needs_no_language(server: SpeechServer) -> None:
    server.documents = [{"text": "", "words": []}]
    heard = HttpSpeech("tiny.en").transcribe(reading(), language=AUTO, beam_size=1, key="")
    assert heard.words == ()


def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERMISSION_SPEECH_URL", "http://127.0.0.1:9/v1")
    with pytest.raises(TaskError, match="did not answer"):
        transcribe(HttpSpeech("tiny.en"))
    monkeypatch.delenv("INTERMISSION_SPEECH_URL")
    with pytest.raises(EnvironmentFault, match="INTERMISSION_SPEECH_URL"):
        engine("http").identify("", AUTO)


def test_models_are_told_by_their_bytes(tmp_path: Path) -> None:
    whisper = engine("faster-whisper")
    default = whisper.identify("", AUTO)
    assert whisper.identify("tiny.en", "en") == default
    assert default.model.startswith("tiny.en@")
    (tmp_path / "model.bin").write_bytes(b"weights")
    mine = whisper.identify(str(tmp_path), AUTO)
    assert mine.model.startswith(f"{tmp_path}@")
    with pytest.raises(EnvironmentFault, match="planned with"):
        whisper.load(Weights(mine.engine, f"{tmp_path}@0123456789ab"))


@pytest.mark.parametrize("name", ["vocabulary.txt", "vocabulary.json"])
def test_a_folder_of_english_weights_is_known_by_its_vocabulary(name: str, tmp_path: Path) -> None:
    """Whatever the folder is called: its weights would write English for any language."""

    def put(tokens: int) -> None:
        words = [f"t{n}" for n in range(tokens)]
        text = "\n".join([*words, ""]) if name.endswith(".txt") else json.dumps(words)
        (tmp_path / name).write_text(text)

    whisper = engine("faster-whisper")
    (tmp_path / "model.bin").write_bytes(b"weights")
    put(51_864)
    with pytest.raises(ParameterError, match=r"language 'de'.*one of: en\."):
        whisper.identify(str(tmp_path), "de")
    whisper.identify(str(tmp_path), "en")
    put(51_865)
    whisper.identify(str(tmp_path), "de")


def test_what_is_not_there_is_said_with_its_remedy(tmp_path: Path) -> None:
    whisper = engine("faster-whisper")
    with pytest.raises(EnvironmentFault, match=r"no model\.bin"):
        whisper.identify(str(tmp_path), AUTO)
    with pytest.raises(EnvironmentFault, match=r"no speech model 'huge'.*large-v3"):
        whisper.identify("huge", AUTO)
    with pytest.raises(EnvironmentFault, match="'large-v3' is not on this machine"):
        whisper.identify("large-v3", AUTO)
    with pytest.raises(ParameterError, match=r"language 'tlh'.*auto"):
        whisper.identify("", "tlh")
    with pytest.raises(ParameterError, match="no speech engine 'ear'"):
        engine("ear")
