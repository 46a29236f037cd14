"""The map of the code is the code: every name in the explanations exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from intermission.pipeline import load

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
ARCHITECTURE = ROOT / "docs" / "explanation" / "architecture.md"
HOPS = 9

# A settings file and entry point groups, which look like names of code.
_NOT_CODE = ("intermission.toml", "intermission.pipelines", "intermission.speech")
_NAME = re.compile(r"`(intermission(?:\.\w+)+)`")
_STEP = re.compile(r"`(examples/\w+\.py):(\w+)`")
_PATH = re.compile(r"`((?:src|tests|examples|docs)/[\w/.-]+)`")


def resolve(name: str) -> object:
    """The module, class, function or method behind a dotted name."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_exists(page: Path) -> None:
    text = page.read_text()
    for name in _NAME.findall(text):
        if name not in _NOT_CODE:
            resolve(name)
    for file, step in _STEP.findall(text):
        assert step in load(str(ROOT / file)).steps
    for path in _PATH.findall(text):
        assert (ROOT / path).exists(), path


def test_a_name_that_does_not_exist_is_noticed() -> None:
    with pytest.raises(AttributeError):
        resolve("intermission.engine.planning.nowhere")
    with pytest.raises(AttributeError):
        resolve("intermission.ports.ledger.Ledger.nowhere")


def test_the_task_takes_ten_hops() -> None:
    text = ARCHITECTURE.read_text()
    stations = re.findall(r"^(\d+)\. `", text.split("## One task in ten hops")[1], re.MULTILINE)
    assert [int(number) for number in stations] == list(range(1, HOPS + 2))
    assert len(_NAME.findall(text)) > HOPS
