"""What the pages say about the code was generated from this code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_generated_part_is_current(generate: ModuleType) -> None:
    pages = generate.pages()
    assert pages
    stale = [page.name for page in pages if generate.filled(page.read_text()) != page.read_text()]
    assert not stale, "run docs/generate.py"


def test_every_part_is_used(generate: ModuleType) -> None:
    text = "".join(page.read_text() for page in generate.pages())
    assert set(re.findall(r"<!-- generated: ([\w-]+) -->", text)) == set(generate.PARTS)


def test_a_stale_part_is_noticed(generate: ModuleType) -> None:
    page = DOCS / "reference" / "states.md"
    stale = page.read_text().replace("    pending --> leased\n", "")
    assert generate.filled(stale) == page.read_text() != stale
