"""`transcribe`: speech to text, span by span, joined without a seam.

    audio ─ spans ─┬─ hear ─┬─ join
    └──── detect ──┘        │
    └───────────────────────┘

The sound is taken out of the source once. It is cut where nobody speaks, every span is heard by
itself, and what was heard is put together with times that count from the source's beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, Field

from intermission import Chunk, Context, File, Pipeline, Source, step
from intermission.backends.speech import engine as speech_engine
from intermission.pipelines.transcribe.cutting import cut
from intermission.pipelines.transcribe.formats import Formats, Transcript, write
from intermission.pipelines.transcribe.seams import Part, join_parts
from intermission.pipelines.transcribe.sound import length_ms, read_sound
from intermission.ports.speech import AUTO, Speech, Weights, Word
from intermission.settings import current

SpanLength = Annotated[
    int, Field(ge=5, le=1800, description="how long a span is at most, in seconds")
]
Model = Annotated[
    str, Field(description="a model's name or folder; the installed one unless given")
]
EngineName = Annotated[str, Field(description="what hears: faster-whisper, or http")]
Language = Annotated[str, Field(description="the language's code, such as en; auto detects it")]
BeamSize = Annotated[int, Field(ge=1, le=20, description="how many readings are weighed")]

DETECT_MS = 120_000
"""As much of the sound decides which language is spoken."""


class Audio(BaseModel):
    """The source's sound: mono, 16,000 samples a second."""

    sound: File
    duration_ms: int


class Span(Chunk):
    """A piece of the sound. Where it had to be cut while somebody spoke, more of it is heard."""

    start_ms: int
    end_ms: int
    heard_from_ms: int
    heard_to_ms: int


class Spoken(BaseModel):
    """The language of the whole source."""

    language: str


class Words(BaseModel):
    """What was heard in one span, in times of the source."""

    span: Span
    language: str
    words: list[Word]
    text: File


class Output(BaseModel):
    """The files of a transcript."""

    files: list[File]


@step(version=1)
def audio(ctx: Context, source: Source) -> Audio:
    """Take the sound out of the source."""
    from intermission.media import Limits, extract_audio

    path = ctx.out("sound.wav")
    limits = Limits.of(current())
    done = extract_audio(source.path, path, limits=limits, on_progress=ctx.progress)
    if not done.has_audio:
        ctx.log.warning("there is no audio track, so the transcript is empty")
    if done.skipped_packets:
        ctx.log.warning("%d corrupt packets of sound were skipped", done.skipped_packets)
    return Audio(sound=path, duration_ms=length_ms(path))


@step(version=1)
def spans(ctx: Context, audio: Audio, chunk_seconds: SpanLength = 60) -> list[Span]:
    """Cut the sound about every so many seconds, where nobody speaks."""
    return [
        Span(start_ms=one.start_ms, end_ms=one.end_ms, heard_from_ms=one.from_ms,
             heard_to_ms=one.to_ms)
        for one in cut(audio.sound, audio.duration_ms, chunk_seconds * 1000, ctx.progress)
    ]  # fmt: skip


@step(version=1)
def detect(
    audio: Audio,
    engine: EngineName = "faster-whisper",
    model: Model = "",
    language: Language = AUTO,
) -> Spoken:
    """Find out which language is spoken, unless it is given."""
    if language != AUTO:
        return Spoken(language=language)
    sound = read_sound(audio.sound, 0, min(DETECT_MS, audio.duration_ms))
    return Spoken(language=_speech(engine, model).detect(sound) if sound else AUTO)


@step(version=1, attempts=4, publish="chunks/chunk_{index:04d}.txt")
def hear(
    ctx: Context,
    audio: Audio,
    span: Span,
    detect: Spoken,
    engine: EngineName = "faster-whisper",
    model: Model = "",
    beam_size: BeamSize = 5,
) -> Words:
    """Write down what is said in one span."""
    heard = _speech(engine, model).hear(
        read_sound(audio.sound, span.heard_from_ms, span.heard_to_ms),
        language=detect.language,
        beam_size=beam_size,
        key=ctx.idempotency_key,
    )
    words = [
        Word(one.start_ms + span.heard_from_ms, one.end_ms + span.heard_from_ms, one.text,
             one.confidence)
        for one in heard.words
    ]  # fmt: skip
    own = Part(span.start_ms, span.end_ms, span.heard_from_ms, span.heard_to_ms, words).own()
    path = ctx.out("chunk.txt")
    path.write_text("".join(word.text for word in own).strip() + "\n", encoding="utf-8")
    return Words(span=span, language=heard.language, words=words, text=path)


@step(version=1, publish="{stem}.{ext}")
def join(
    ctx: Context,
    source: Source,
    audio: Audio,
    hear: list[Words],
    engine: EngineName = "faster-whisper",
    model: Model = "",
    output_format: Formats = "all",
) -> Output:
    """Put the spans together and write the transcript in every format."""
    parts = [
        Part(one.span.start_ms, one.span.end_ms, one.span.heard_from_ms, one.span.heard_to_ms,
             one.words)
        for one in hear
    ]  # fmt: skip
    spoken = [one.language for one in hear if one.words]
    transcript = Transcript(
        words=join_parts(parts),
        language=max(set(spoken), key=spoken.count) if spoken else "",
        duration_ms=audio.duration_ms,
        engine=engine,
        model=model,
        source_name=source.name,
        fingerprint=source.fingerprint,
    )
    return Output(files=write(transcript, output_format, ctx.out))


@lru_cache(maxsize=1)
def _speech(engine: str, model: str) -> Speech:
    """The model, loaded once in a slot."""
    return speech_engine(engine).load(Weights(engine, model))


def _resolve(params: dict[str, Any]) -> Mapping[str, Any]:
    """Which weights these are, so that other weights are another job."""
    weights = speech_engine(params["engine"]).identify(params["model"], params["language"])
    return {"engine": weights.engine, "model": weights.model}


transcribe = Pipeline(
    "transcribe", [audio, spans, detect, hear, join], output="transcripts", resolve=_resolve
)
