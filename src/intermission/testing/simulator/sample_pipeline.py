"""The pipeline that is simulated: every kind of step, in the smallest graph that has them all.

Two plans that race each other, a chain of maps, a step that is not durable, a chunk that is
always skipped, a fan-in over all of it and a step behind the fan-in. Every step reports progress
once, which is where the simulator interrupts it. A newer version of the pipeline and a small other
one are for fleets whose hosts do not all have the same.
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
NEVER = "nobody can mark this part."
LOOK_MAX_S = 15.0


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
        raise Permanent(NEVER)
    return hear.file.read_text().upper()


@step(version=1, durable=False)
def level(ctx: Context, part: Part) -> int:
    ctx.progress(0.5)
    return part.no * 10


@step(version=1, timeout_s=LOOK_MAX_S)
def look(ctx: Context, page: Page) -> str:
    ctx.progress(0.5)
    return f"page {page.no}"


@step(version=1)
def join(ctx: Context, mark: list[str | None], level: list[int], look: list[str]) -> Text:
    return _write(ctx, "talk.txt", "\n".join(map(str, [*mark, *level, *look])))


@step(version=1, publish="{stem}.txt")
def stamp(ctx: Context, join: Text) -> Text:
    return _write(ctx, "stamped.txt", f"{join.file.read_text()}\n{join.length}")


newer_stamp = step(version=2, publish="{stem}.txt")(stamp.function)


@step(version=1)
def note(ctx: Context, source: Source) -> str:
    ctx.progress(0.5)
    return f"note on {source.fingerprint}"


_FIRST = [audio, parts, pages, hear, mark, level, look, join]
TALK = Pipeline("talk", [*_FIRST, stamp])
NEWER_TALK = Pipeline("talk", [*_FIRST, newer_stamp])
NOTE = Pipeline("note", [note])


def job_of(pipeline: Pipeline, source: str) -> Job:
    return make_job(pipeline, Source(f"simulated:/{source}", f"{source}-0123456789", 16), {})


def talk_job() -> Job:
    return job_of(TALK, "talk")
