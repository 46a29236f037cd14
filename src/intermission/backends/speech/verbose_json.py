"""A transcription as OpenAI's `verbose_json` has it: checked, and read as words with times."""

from __future__ import annotations

import re
from itertools import accumulate
from math import exp

from pydantic import BaseModel, FiniteFloat, ValidationError

from intermission.ports.speech import Word


class NotVerboseJson(ValueError):
    """The answer is something else. The message completes "expected a transcription ..., "."""


class AnswerWord(BaseModel):
    word: str
    start: FiniteFloat
    end: FiniteFloat
    probability: float | None = None


class AnswerSegment(BaseModel):
    text: str
    start: FiniteFloat
    end: FiniteFloat
    avg_logprob: float | None = None


class Answer(BaseModel):
    """What we use of it. Times are in seconds."""

    text: str
    language: str | None = None
    words: list[AnswerWord] | None = None
    segments: list[AnswerSegment] | None = None


def read_answer(document: object) -> Answer:
    """The answer, if it is one; else `NotVerboseJson`."""
    if not isinstance(document, dict):
        found = "null" if document is None else f"a {type(document).__name__}"
        raise NotVerboseJson(f"found {found}")
    try:
        answer = Answer.model_validate(document)
    except ValidationError as e:
        wrong = e.errors()[0]
        field = ".".join(str(one) for one in wrong["loc"])
        raise NotVerboseJson(
            f"found a JSON object with another shape: {field}: {wrong['msg']}"
        ) from e
    if answer.text.strip() and not answer.words and not answer.segments:
        raise NotVerboseJson("found text without words or segments, so nothing tells its times")
    return answer


def words_of(answer: Answer) -> list[Word]:
    """Words with their times; where a server gives none, shared out within its segments."""
    if not answer.words:
        return [word for segment in answer.segments or () for word in _shared_out(segment)]
    texts = re.findall(r"\s*\S+", answer.text)
    bare = [one.word.strip() for one in answer.words]
    # Words come without punctuation; the text has it, and mostly the same words.
    texts = texts if _same(texts, bare) else [f" {text}" for text in bare]
    return [
        Word(_ms(one.start), _ms(one.end), text, one.probability)
        for one, text in zip(answer.words, texts, strict=True)
    ]


def _same(texts: list[str], bare: list[str]) -> bool:
    return [_letters(text) for text in texts] == [_letters(text) for text in bare]


def _letters(text: str) -> str:
    return re.sub(r"[\W_]", "", text).lower()


def _shared_out(segment: AnswerSegment) -> list[Word]:
    texts = re.findall(r"\s*\S+", segment.text)
    start_ms, end_ms = _ms(segment.start), _ms(segment.end)
    ends = list(accumulate(len(text) for text in texts))
    at = [start_ms + (end_ms - start_ms) * end // ends[-1] for end in ends]
    confidence = None if segment.avg_logprob is None else exp(min(segment.avg_logprob, 0.0))
    return [
        Word(begin, end, text, confidence)
        for begin, end, text in zip([start_ms, *at], at, texts, strict=False)
    ]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
