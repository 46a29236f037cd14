"""Numbers, times and tables as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3:05 min`, `2:00:05 h`"""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d} h"


def rate(per_s: float) -> str:
    if per_s >= 1:
        return f"{per_s:.1f}/s"
    return f"{per_s * 60:.1f}/min" if per_s * 60 >= 1 else f"{per_s * 3600:.1f}/h"


def size(size_bytes: int) -> str:
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def near(path: object) -> str:
    """A path as seen from the working directory, where it lies below it; else as it is."""
    here = Path.cwd()
    if not isinstance(path, Path):
        return str(path)
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Aligned columns; numbers to the right. The last column may be as long as it likes."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *texts, strict=True)]
    right = [
        bool(rows) and all(isinstance(row[n], int | float) for row in rows)
        for n in range(len(header))
    ]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(cells, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), *(line(row) for row in texts)])


def skipped_text(skipped: int) -> str:
    """What a folder has that a pipeline does not take."""
    verb = "is" if skipped == 1 else "are"
    return f"skipped {count(skipped, 'file')} that {verb} not media (--include '*' takes all)"
