"""A speech engine behind HTTP: whatever answers `POST /audio/transcriptions` as OpenAI does."""

from __future__ import annotations

import io
import wave
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from intermission.backends.speech.verbose_json import (
    Answer,
    NotVerboseJson,
    read_answer,
    words_of,
)
from intermission.errors import EnvironmentFault, Permanent, TaskError
from intermission.ports.speech import AUTO, BYTES_PER_SAMPLE, RATE_HZ, Transcription, Weights, Word
from intermission.settings import current

if TYPE_CHECKING:
    import httpx

_DEFAULT_MODEL = "whisper-1"
_CONNECT_TIMEOUT_S = 10.0
_ANSWER_TIMEOUT_S = 600.0
_WAIT_MAX_S = 3600.0
_BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
_DENIED = frozenset({401, 403})


class HttpEngine:
    """Which words come back is the server's business: its model's name is all we know of it."""

    def identify(self, model: str, language: str) -> Weights:
        _url()
        return Weights("http@1", model or _DEFAULT_MODEL)

    def load(self, weights: Weights) -> HttpSpeech:
        return HttpSpeech(weights.model)


class HttpSpeech:
    """One model of one server. Every call carries the task's key, so a repeat can be told."""

    def __init__(self, model: str) -> None:
        self._model = model

    def transcribe(self, audio: bytes, *, language: str, beam_size: int, key: str) -> Transcription:
        fields: dict[str, Any] = {
            "model": self._model,
            "response_format": "verbose_json",
            "timestamp_granularities[]": ["word", "segment"],
            "temperature": "0",
        }
        if language != AUTO:
            fields["language"] = language
        try:
            answer = read_answer(self._post(fields, _as_wav(audio), key))
        except NotVerboseJson as e:
            raise TaskError(
                f"expected a transcription in verbose_json from {_url()}, {e}.",
                remedy="Is it a server that is compatible with OpenAI's?",
            ) from e
        end_ms = len(audio) // BYTES_PER_SAMPLE * 1000 // RATE_HZ
        words = tuple(_inside(word, end_ms) for word in words_of(answer))
        if language == AUTO and words:
            language = self._detected(answer)
        return Transcription(language, words)

    def detect(self, audio: bytes) -> str:
        return AUTO

    def _detected(self, answer: Answer) -> str:
        """The language the server found: a transcript names its language, so one is needed."""
        if not answer.language:
            raise Permanent(
                f"the speech engine at {_url()} answered without a language, and none was given.",
                remedy="Give the language that is spoken, such as --language en.",
            )
        return answer.language

    def _post(self, fields: dict[str, Any], wav: bytes, key: str) -> object:
        httpx = httpx_library()
        secret = current().speech_api_key
        headers = {"Idempotency-Key": key} if key else {}
        if secret is not None:
            headers["Authorization"] = f"Bearer {secret.get_secret_value()}"
        try:
            answer = httpx.post(
                f"{_url()}/audio/transcriptions",
                data=fields,
                files={"file": ("audio.wav", wav, "audio/wav")},
                headers=headers,
                timeout=httpx.Timeout(_ANSWER_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S),
            )
        except httpx.HTTPError as e:
            raise TaskError(
                f"the speech engine at {_url()} did not answer: {e or type(e).__name__}.",
                remedy="Is it running, and is speech_url right?",
            ) from e
        if answer.status_code in _DENIED:
            raise EnvironmentFault(
                f"the speech engine at {_url()} denied us ({answer.status_code}).",
                remedy="Set INTERMISSION_SPEECH_API_KEY to a key that it accepts.",
            )
        if answer.status_code in _BUSY:
            raise TaskError(
                f"the speech engine at {_url()} answered {answer.status_code}: {_excerpt(answer)}.",
                remedy="It is tried again.",
                retry_after_s=_retry_after_s(answer.headers.get("Retry-After")),
            )
        if not answer.is_success:
            raise Permanent(
                f"the speech engine at {_url()} refused the audio ({answer.status_code}): "
                f"{_excerpt(answer)}.",
                remedy=f"Does it have the model {self._model!r}, and know the language?",
            )
        try:
            return answer.json()
        except ValueError as e:
            raise TaskError(
                f"the speech engine at {_url()} answered something other than JSON.",
                remedy="Is speech_url right? It usually ends in /v1.",
            ) from e


def _url() -> str:
    url = current().speech_url
    if url is None:
        raise EnvironmentFault(
            "the http speech engine has no address.",
            remedy="Set INTERMISSION_SPEECH_URL, such as http://127.0.0.1:8000/v1.",
        )
    return url.rstrip("/")


def httpx_library() -> Any:
    """The package httpx, imported where it is needed first."""
    try:
        import httpx
    except ImportError as e:
        raise EnvironmentFault(
            "the package httpx is missing.", remedy="Run `pip install 'intermission[transcribe]'`."
        ) from e
    return httpx


def _as_wav(audio: bytes) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as wav:
        wav.setnchannels(1)
        wav.setsampwidth(BYTES_PER_SAMPLE)
        wav.setframerate(RATE_HZ)
        wav.writeframes(audio)
    return file.getvalue()


def _excerpt(answer: httpx.Response) -> str:
    return " ".join(answer.text.split())[:200].rstrip(".") or "without a word"


def _retry_after_s(text: str | None) -> float | None:
    """A number of seconds or a date, as HTTP allows; nothing else is believed."""
    if text is None:
        return None
    try:
        wait_s = float(text)
    except ValueError:
        try:
            wait_s = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
        except (TypeError, ValueError):
            return None
    return min(max(0.0, wait_s), _WAIT_MAX_S)


def _inside(word: Word, end_ms: int) -> Word:
    start_ms = min(max(0, word.start_ms), end_ms)
    return Word(start_ms, min(max(word.end_ms, start_ms), end_ms), word.text, word.confidence)
