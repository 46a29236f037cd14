"""The pipeline that is simulated: every kind of step, in the smallest graph that has them all.

Two plans that race each other, a chain of maps, a step that is not durable, a chunk that is
always skipped, a fan-in over all of it and a step behind the fan-in. Every step reports progress
once, which is how the simulator counts executions and interrupts them.
"""

from __future__ import annotations

from pydantic import BaseModel

from intermission.engine.planning import make_job
from intermission.errors import Permanent
from intermission.model import Job, Source
from intermission.pipeline import Chunk, Context, File, Pipeline, step

PARTS = 3
PAGES = 2
GAP = 2
"""The part that no attempt can mark."""


class Part(Chunk):
    no: int


class Page(Chunk):
    no: int


class Text(BaseModel):
    file: File
    length: int


def _write(ctx: Context, name: str, text: str) -> Text:
    path = ctx.out(name)
    path.write_text(text)
    ctx.progress(0.5)
    return Text(file=path, length=len(text))


@step(version=1)
def audio(ctx: Context, source: Source) -> Text:
    return _write(ctx, "audio.txt", f"sound of {source.fingerprint}")


@step(version=1)
def parts(ctx: Context, audio: Text) -> list[Part]:
    ctx.progress(0.5)
    return [Part(no=no) for no in range(min(PARTS, audio.length))]


@step(version=1)
def pages(ctx: Context, source: Source) -> list[Page]:
    ctx.progress(0.5)
    return [Page(no=no) for no in range(PAGES)]


@step(version=1)
def hear(ctx: Context, audio: Text, part: Part) -> Text:
    return _write(ctx, "words.txt", f"{part.no} of {audio.file.read_text()}")


@step(version=1, attempts=1000, on_error="skip")
def mark(ctx: Context, hear: Text, part: Part) -> str:
    ctx.progress(0.5)
    if part.no == GAP:
        raise Permanent("nobody can mark this part.")
    return hear.file.read_text().upper()


@step(version=1, durable=False)
def level(ctx: Context, part: Part) -> int:
    ctx.progress(0.5)
    return part.no * 10


@step(version=1)
def look(ctx: Context, page: Page) -> str:
    ctx.progress(0.5)
    return f"page {page.no}"


@step(version=1)
def join(ctx: Context, mark: list[str | None], level: list[int], look: list[str]) -> Text:
    return _write(ctx, "talk.txt", "\n".join(map(str, [*mark, *level, *look])))


@step(version=1)
def stamp(ctx: Context, join: Text) -> Text:
    return _write(ctx, "stamped.txt", f"{join.file.read_text()}\n{join.length}")


TALK = Pipeline("talk", [audio, parts, pages, hear, mark, level, look, join, stamp])


def talk_job() -> Job:
    source = Source("simulated:talk", "0123456789abcdef", 16)
    return make_job(TALK, source, {})
