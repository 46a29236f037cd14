"""Finding sources: files, folders and globs, without what Intermission itself put there."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path

from intermission.errors import EmptyPlace, SourceError


def find_sources(
    places: Sequence[str], *, include: Sequence[str] = (), workspace_name: str
) -> list[Path]:
    """The files that the places name, each once, in order. Raises when a place has none.

    A folder stands for the files below it, hidden ones and outputs left out; `include`
    keeps those whose name, or path below the folder, matches one of the patterns.
    """
    found: dict[Path, None] = {}
    for place in places:
        paths = [path.resolve() for path in _expand(place, include, workspace_name)]
        found.update(dict.fromkeys(paths))
        if not paths:
            wanted = f" that matches {', '.join(include)}" if include else ""
            raise EmptyPlace(
                f"{place} has no file{wanted}.",
                remedy="Give a file, a folder or a quoted pattern such as 'talks/*.mp4'.",
            )
    return list(found)


def _expand(place: str, include: Sequence[str], workspace_name: str) -> Iterator[Path]:
    path = Path(place)
    if path.is_dir():
        yield from _walk(path, include, workspace_name)
    elif path.is_file():
        yield path
    elif path.exists():
        raise SourceError(
            f"{place} is neither a file nor a folder.", remedy="Copy what it gives into a file."
        )
    elif glob.has_magic(place):
        matches = sorted(glob.glob(place, recursive=True))  # noqa: PTH207  (takes any root)
        yield from (Path(match) for match in matches if Path(match).is_file())
    else:
        raise SourceError(
            f"{place} does not exist.",
            remedy="Check the path; quote a pattern so that the shell leaves it alone.",
        )


def _walk(root: Path, include: Sequence[str], workspace_name: str) -> Iterator[Path]:
    def fail(e: OSError) -> None:
        raise SourceError(
            f"{e.filename} cannot be listed: {e.strerror}.", remedy="Check its permissions."
        )

    for folder, folders, names in os.walk(root, onerror=fail):
        outputs = Path(folder, workspace_name, "outputs")
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and not (outputs / name).is_dir()
        )
        for name in sorted(names):
            path = Path(folder, name)
            below = path.relative_to(root).as_posix()
            wanted = not include or any(fnmatch(name, p) or fnmatch(below, p) for p in include)
            if wanted and not name.startswith(".") and path.is_file():
                yield path


def find_workspaces(place: Path, workspace_name: str) -> Iterator[Path]:
    """The folders of the workspaces at or below a place, by the source they belong to."""
    for folder, folders, _ in os.walk(place):
        if workspace_name in folders:
            for entry in sorted(Path(folder, workspace_name).iterdir()):
                if entry.is_dir() and entry.name != "outputs" and not entry.name.startswith("."):
                    yield entry
        folders[:] = sorted(name for name in folders if not name.startswith("."))
