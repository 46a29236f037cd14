"""The tree drawn in the docstring of `errors` is the tree of its classes."""

from __future__ import annotations

import re

import pytest

from intermission import errors
from intermission.errors import CorruptArtifact, IntermissionError

CLASSES: dict[str, type[IntermissionError]] = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, IntermissionError)
}
ROW = re.compile(
    r"^ {4}(?P<branch>[│├└─ ]*)(?P<name>[A-Z]\w+) +(?P<code>\d+)(?: {3}(?P<note>.+))?$"
)


def drawn() -> dict[str, tuple[str | None, int, str]]:
    """Name to (parent, exit code, note), as the docstring has it."""
    tree: dict[str, tuple[str | None, int, str]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if row := ROW.match(line):
            depth = len(row["branch"]) // 4
            parent = path[depth - 1] if depth else None
            path[depth:] = [row["name"]]
            tree[row["name"]] = (parent, int(row["code"]), row["note"] or "")
    return tree


def test_the_drawing_is_the_tree() -> None:
    assert len(CLASSES) > 10
    actual = {
        name: (None if cls is IntermissionError else cls.__bases__[0].__name__, cls.exit_code)
        for name, cls in CLASSES.items()
    }
    assert {name: row[:2] for name, row in drawn().items()} == actual


def test_the_drawing_says_what_is_retryable() -> None:
    for name, (_, _, note) in drawn().items():
        if note.startswith("permanent:"):
            assert not CLASSES[name].retryable, name
        if note.startswith("retryable:"):
            assert CLASSES[name].retryable, name


@pytest.mark.parametrize("name", CLASSES)
def test_every_class_says_what_it_means(name: str) -> None:
    assert CLASSES[name].__doc__


def test_an_error_reads_as_what_happened_and_what_to_do() -> None:
    error = IntermissionError("the disk is full.", remedy="Make room.")
    assert str(error) == "the disk is full. Make room."
    assert str(IntermissionError("the disk is full.")) == "the disk is full."
    assert CorruptArtifact("gone.", task_key="t", key="k").key == "k"
