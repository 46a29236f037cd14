"""Word counts of a text, by line ranges: the smallest pipeline that fans out and in again.

intermission run examples/wordcount.py:wordcount examples/texts
"""

import json
import re
from collections import Counter
from itertools import islice

from pydantic import PositiveInt

from intermission import Chunk, Context, File, Pipeline, Source, step

WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")


class Lines(Chunk):
    start: int
    stop: int


@step(version=1)
def ranges(source: Source, every: PositiveInt = 10) -> list[Lines]:
    """Cut the text into ranges of so many lines."""
    with source.path.open(encoding="utf-8") as text:
        total = sum(1 for _ in text)
    return [Lines(start=n, stop=min(n + every, total)) for n in range(0, total, every)]


@step(version=1)
def count(source: Source, lines: Lines) -> dict[str, int]:
    """Count the words of one range."""
    with source.path.open(encoding="utf-8") as text:
        found = (WORD.findall(line.lower()) for line in islice(text, lines.start, lines.stop))
        return Counter(word for words in found for word in words)


@step(version=1)
def total(ctx: Context, count: list[dict[str, int]]) -> File:
    """Add up the ranges and write the counts, most frequent first."""
    words: Counter[str] = Counter()
    for part in count:
        words.update(part)
    ranked = sorted(words.items(), key=lambda pair: (-pair[1], pair[0]))
    path = ctx.out("counts.json")
    path.write_text(json.dumps(dict(ranked), indent=1, ensure_ascii=False) + "\n")
    return path


wordcount = Pipeline("wordcount", [ranges, count, total])
