"""The steps of `transcribe`, and what they hand to each other."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from pydantic import BaseModel, Field

from intermission import Chunk, Context, File, Source, step
from intermission.backends.speech import engine as speech_engine
from intermission.pipelines.transcribe.audio_file import length_ms, read_audio
from intermission.pipelines.transcribe.chunking import split
from intermission.pipelines.transcribe.confidence import low_confidence
from intermission.pipelines.transcribe.formats import Formats, Transcript, write
from intermission.pipelines.transcribe.overlap_merge import TranscribedChunk, merge_chunks
from intermission.ports.speech import AUTO, Speech, Weights, Word
from intermission.settings import current

ChunkLength = Annotated[int, Field(ge=5, le=1800, description="longest chunk, in seconds")]
Model = Annotated[str, Field(description="a model's name or folder; the installed one by default")]
EngineName = Annotated[str, Field(description="speech engine: faster-whisper or http")]
Language = Annotated[str, Field(description="language code, such as en; auto detects it")]
BeamSize = Annotated[int, Field(ge=1, le=20, description="beam size")]

DETECT_MS = 120_000
"""How much of the audio decides which language is spoken."""


class Audio(BaseModel):
    """The audio of the source: mono, 16,000 samples a second."""

    file: File
    duration_ms: int


class AudioChunk(Chunk):
    """A part of the audio. At a seam that cuts through speech, it reads beyond its own ends."""

    start_ms: int
    end_ms: int
    read_from_ms: int
    read_to_ms: int


class Spoken(BaseModel):
    """The language of the whole source."""

    language: str


class Words(BaseModel):
    """The words of one chunk, with times of the source."""

    chunk: AudioChunk
    language: str
    words: list[Word]
    text: File


class Output(BaseModel):
    """The files of a transcript."""

    files: list[File]


@step(version=2)
def audio(ctx: Context, source: Source) -> Audio:
    """Extract the audio from the source."""
    from intermission.media import Limits, extract_audio

    path = ctx.out("audio.wav")
    limits = Limits.of(current())
    done = extract_audio(source.path, path, limits=limits, on_progress=ctx.progress)
    if not done.has_audio:
        ctx.log.warning("there is no audio track, so the transcript is empty")
    if done.skipped_packets:
        ctx.log.warning("%d corrupt audio packets were skipped", done.skipped_packets)
    return Audio(file=path, duration_ms=length_ms(path))


@step(version=1)
def chunks(ctx: Context, audio: Audio, chunk_seconds: ChunkLength = 60) -> list[AudioChunk]:
    """Split the audio about every so many seconds, at pauses."""
    return [
        AudioChunk(start_ms=one.start_ms, end_ms=one.end_ms, read_from_ms=one.from_ms,
                   read_to_ms=one.to_ms)
        for one in split(audio.file, audio.duration_ms, chunk_seconds * 1000, ctx.progress)
    ]  # fmt: skip


@step(version=1)
def detect(
    audio: Audio,
    engine: EngineName = "faster-whisper",
    model: Model = "",
    language: Language = AUTO,
) -> Spoken:
    """Detect which language is spoken, unless it is given."""
    if language != AUTO:
        return Spoken(language=language)
    samples = read_audio(audio.file, 0, min(DETECT_MS, audio.duration_ms))
    return Spoken(language=_speech(engine, model).detect(samples) if samples else AUTO)


@step(version=1, attempts=4, publish="chunks/chunk_{index:04d}.txt")
def transcribe(
    ctx: Context,
    audio: Audio,
    chunk: AudioChunk,
    detect: Spoken,
    engine: EngineName = "faster-whisper",
    model: Model = "",
    beam_size: BeamSize = 5,
) -> Words:
    """Transcribe one chunk."""
    heard = _speech(engine, model).transcribe(
        read_audio(audio.file, chunk.read_from_ms, chunk.read_to_ms),
        language=detect.language,
        beam_size=beam_size,
        key=ctx.idempotency_key,
    )
    words = [
        Word(one.start_ms + chunk.read_from_ms, one.end_ms + chunk.read_from_ms, one.text,
             one.confidence)
        for one in heard.words
    ]  # fmt: skip
    path = ctx.out("chunk.txt")
    own = _transcribed(chunk, words).own()
    path.write_text("".join(word.text for word in own).strip() + "\n", encoding="utf-8")
    return Words(chunk=chunk, language=heard.language, words=words, text=path)


@step(version=2, publish="{stem}.{ext}")
def merge(
    ctx: Context,
    source: Source,
    audio: Audio,
    transcribe: list[Words],
    engine: EngineName = "faster-whisper",
    model: Model = "",
    output_format: Formats = "all",
) -> Output:
    """Merge the chunks and write the transcript in every format."""
    spoken = [one.language for one in transcribe if one.words]
    transcript = Transcript(
        words=merge_chunks([_transcribed(one.chunk, one.words) for one in transcribe]),
        language=max(set(spoken), key=spoken.count) if spoken else "",
        duration_ms=audio.duration_ms,
        engine=engine,
        model=model,
        source_name=source.name,
        fingerprint=source.fingerprint,
    )
    if (mean := low_confidence(transcript.words)) is not None:
        ctx.log.warning(
            "the mean confidence of the words, %.2f, is low: check them. If it is not %r that is "
            "spoken, use a model that knows the language; models named .en write English for any",
            mean,
            transcript.language,
        )
    return Output(files=write(transcript, output_format, ctx.out))


def _transcribed(chunk: AudioChunk, words: list[Word]) -> TranscribedChunk:
    return TranscribedChunk(
        chunk.start_ms, chunk.end_ms, chunk.read_from_ms, chunk.read_to_ms, words
    )


@lru_cache(maxsize=1)
def _speech(engine: str, model: str) -> Speech:
    """The model, loaded once in a slot."""
    return speech_engine(engine).load(Weights(engine, model))
