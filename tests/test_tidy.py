"""The house style, where a machine can check it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "intermission"
PRODUCT = sorted(PACKAGE.rglob("*.py"))
EVERYTHING = sorted(
    path
    for folder in ("src", "tests", "examples", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
)

BANNED = re.compile(r"(^|_)(utils?|helpers?|common|misc|managers?|base\d+)(_|$)")
CORE_MAX_LINES = 4000
HEAVY = ("pydantic", "typer", "rich", "apsw", "blake3")


def name(path: Path) -> str:
    return path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else ROOT).as_posix()


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def each(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", [pytest.param(path, id=name(path)) for path in paths])


def test_there_is_something_to_check() -> None:
    assert PACKAGE / "model.py" in PRODUCT
    assert Path(__file__) in EVERYTHING


@each(PRODUCT)
def test_a_file_holds_one_idea(path: Path) -> None:
    assert lines(path) <= 600, "is there a second idea in it? Never split a class for its length"


@each(EVERYTHING)
def test_functions_are_short(path: Path) -> None:
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > 70
    }
    assert not long


@each(EVERYTHING)
def test_names_say_something(path: Path) -> None:
    parts = path.relative_to(ROOT).with_suffix("").parts
    assert not [part for part in parts if BANNED.search(part)]


@each(EVERYTHING)
def test_modules_have_docstrings(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@each([path for path in EVERYTHING if path != Path(__file__)])
def test_nothing_is_left_for_later(path: Path) -> None:
    text = path.read_text()
    assert not re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b", text)
    assert not re.findall(r"^\s*#\s*[-=#*]{4,}", text, re.MULTILINE), "no banners"


@each([path for path in PRODUCT if not name(path).startswith("cli")])
def test_only_the_command_line_prints(path: Path) -> None:
    calls = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert not calls


def test_the_core_is_one_afternoons_reading() -> None:
    core = [path for path in PRODUCT if re.match(r"model\.py|ports/|engine/", name(path))]
    assert sum(map(lines, core)) <= CORE_MAX_LINES


def test_importing_the_package_costs_nothing() -> None:
    code = "import intermission, sys, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    loaded = set(json.loads(done.stdout))
    assert "intermission" in loaded
    assert not loaded.intersection(HEAVY)
