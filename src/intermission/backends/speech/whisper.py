"""Whisper models, run here by faster-whisper on the CPU or a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from intermission.backends.speech.vad import (
    FRAME_SAMPLES,
    SPEECH,
    as_samples,
    passages,
    speech_likelihood,
)
from intermission.backends.speech.weights import DIGITS, digest, is_english_only, locate
from intermission.errors import EnvironmentFault, ParameterError
from intermission.ports.speech import AUTO, RATE_HZ, Transcription, Weights, Word
from intermission.settings import Settings, current

if TYPE_CHECKING:
    import numpy as np

_CODES = (
    "af am ar as az ba be bg bn bo br bs ca cs cy da de el en es et eu fa fi fo fr gl gu ha haw "
    "he hi hr ht hu hy id is it ja jw ka kk km kn ko la lb ln lo lt lv mg mi mk ml mn mr ms mt "
    "my ne nl nn no oc pa pl ps pt ro ru sa sd si sk sl sn so sq sr su sv sw ta te tg th tk tl "
    "tr tt uk ur uz vi yi yo yue zh"
)
LANGUAGES = tuple(_CODES.split())
"""What multilingual Whisper models know; `yue` since the third large one."""
_SEED = 1
_BATCH = 8
"""Windows at a time: much for a GPU, a little for a CPU."""
_FRAME_S = FRAME_SAMPLES / RATE_HZ
_WINDOW_FRAMES = int(30 / _FRAME_S)
"""What a model hears at once."""
_UNHEARD_FRAMES = round(1 / _FRAME_S)
"""A model that has no word for so much speech has stopped listening."""
_INSTALL = "Run `pip install 'intermission[transcribe]'`."


class WhisperEngine:
    """Weights in a format that CTranslate2 reads, found by `weights.locate`."""

    def identify(self, model: str, language: str) -> Weights:
        require_library()
        name, folder = locate(_named(model))
        spoken = ("en",) if is_english_only(name, folder) else LANGUAGES
        if language not in (AUTO, *spoken):
            raise ParameterError(
                f"the model {name} does not know the language {language!r}.",
                remedy=f"Give {AUTO}, or one of: {', '.join(spoken)}.",
            )
        return Weights(f"faster-whisper@{version('faster-whisper')}", f"{name}@{digest(folder)}")

    def load(self, weights: Weights) -> WhisperSpeech:
        found = self.identify(weights.model, AUTO)
        if found != weights:
            raise EnvironmentFault(
                f"this job was planned with {weights.engine} and {weights.model}, "
                f"and here are {found.engine} and {found.model}.",
                remedy="Run the same command again: it plans with what is here.",
            )
        return WhisperSpeech(_named(weights.model))


class WhisperSpeech:
    """One loaded model."""

    def __init__(self, model: str) -> None:
        from faster_whisper import WhisperModel

        settings = current()
        _, folder = locate(model)
        device = chosen_device(settings)
        try:
            self._model = WhisperModel(
                str(folder),
                device=device,
                compute_type=chosen_precision(settings, device),
                cpu_threads=chosen_threads(settings),
            )
        except (RuntimeError, ValueError) as e:  # what CTranslate2 raises for all its troubles
            raise EnvironmentFault(
                f"the speech model {model} cannot be loaded on {device}: {e}.",
                remedy="Set speech_device to cpu, or speech_precision to what the device can do.",
            ) from e

    def transcribe(self, audio: bytes, *, language: str, beam_size: int, key: str) -> Transcription:
        """Every passage between pauses as one window of the model's, several at a time.

        What comes out doubtful, or has no pause where it should end, is heard again the slow way.
        """
        if language == AUTO:
            language = self.detect(audio)
        how = {"language": language, "beam_size": beam_size, "word_timestamps": True}
        samples = as_samples(audio)
        likelihood = speech_likelihood(audio)
        spoken = passages(likelihood, _WINDOW_FRAMES)
        quick = self._quickly(samples, [one for one in spoken if _fits(one)], how)
        words: list[Word] = []
        end_ms = len(samples) * 1000 // RATE_HZ
        for passage in spoken:
            segment = next(quick) if _fits(passage) else None
            if segment is not None and not _doubtful(segment, likelihood, passage):
                words += (_word(one, 0, end_ms) for one in segment.words if one.word)
                continue
            first, last = (at * FRAME_SAMPLES for at in passage)
            words += (
                _word(one, first * 1000 // RATE_HZ, end_ms)
                for one in self._carefully(samples[first:last], how)
            )
        return Transcription(language, tuple(words))

    def _quickly(
        self, samples: np.ndarray, spoken: Sequence[tuple[int, int]], how: Mapping[str, Any]
    ) -> Iterator[Any]:
        """A segment for each passage."""
        from faster_whisper import BatchedInferencePipeline

        clips = [
            {"start": start * _FRAME_S, "end": min(end * _FRAME_S, len(samples) / RATE_HZ)}
            for start, end in spoken
        ]
        if not clips:
            return iter(())
        segments, _ = BatchedInferencePipeline(self._model).transcribe(
            samples, clip_timestamps=clips, batch_size=_BATCH, **how
        )
        return iter(segments)

    def _carefully(self, samples: np.ndarray, how: Mapping[str, Any]) -> Iterator[Any]:
        """Words, window after window as far as sentences go, with other tries where one fails."""
        import ctranslate2

        # When a passage is hard, words are drawn by lot: by the same one in every attempt.
        ctranslate2.set_random_seed(_SEED)
        segments, _ = self._model.transcribe(samples, condition_on_previous_text=False, **how)
        return (word for segment in segments for word in segment.words or () if word.word)

    def detect(self, audio: bytes) -> str:
        if not self._model.model.is_multilingual:
            return "en"
        language, _, _ = self._model.detect_language(
            as_samples(audio), vad_filter=True, language_detection_segments=4
        )
        return language


def _named(model: str) -> str:
    """A model's name without the digest that `identify` adds: it knows its own answers."""
    return re.sub(rf"@[0-9a-f]{{{DIGITS}}}$", "", model)


def _fits(passage: tuple[int, int]) -> bool:
    return passage[1] - passage[0] <= _WINDOW_FRAMES


def _doubtful(segment: Any, likelihood: Sequence[float], passage: tuple[int, int]) -> bool:
    """Repeats itself or guesses, by Whisper's own measures; or has no words for some speech."""
    if segment.compression_ratio > 2.4 or segment.avg_logprob < -1.0:
        return True
    ends = [round(at / _FRAME_S) for word in segment.words for at in (word.start, word.end)]
    edges = [passage[0], *ends, passage[1]]
    between = zip(edges[::2], edges[1::2], strict=True)
    unheard = max(sum(one >= SPEECH for one in likelihood[a:b]) for a, b in between)
    return unheard > _UNHEARD_FRAMES


def _word(word: Any, from_ms: int, end_ms: int) -> Word:
    start_ms = min(from_ms + round(word.start * 1000), end_ms)
    ended_ms = min(max(from_ms + round(word.end * 1000), start_ms), end_ms)
    return Word(start_ms, ended_ms, word.word, round(float(word.probability), 3))


def require_library() -> None:
    """Without importing it: a supervisor asks, and needs no model in its memory."""
    if find_spec("faster_whisper") is None:
        raise EnvironmentFault("the package faster-whisper is missing.", remedy=_INSTALL)


def chosen_device(settings: Settings) -> str:
    """Where models run: a GPU if there is one, unless the settings say otherwise."""
    import ctranslate2

    if settings.speech_device != "auto":
        return settings.speech_device
    return "cuda" if ctranslate2.get_cuda_device_count() else "cpu"


def chosen_precision(settings: Settings, device: str) -> str:
    """The fastest numbers that lose no words, of those the device can do."""
    import ctranslate2

    if settings.speech_precision != "auto":
        return settings.speech_precision
    able = ctranslate2.get_supported_compute_types(device)
    wanted = ("float16", "int8_float16", "float32") if device == "cuda" else ("int8", "float32")
    return next((one for one in wanted if one in able), "default")


def chosen_threads(settings: Settings) -> int:
    """A model's share of the cores, so that slots do not get into each other's way."""
    cores = Settings.model_fields["slots"].get_default(call_default_factory=True)
    return settings.speech_threads or max(1, cores // settings.slots)
