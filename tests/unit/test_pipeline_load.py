"""Finding pipelines: in files, in modules, by entry point, and what a failed search says."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from intermission import Pipeline
from intermission.errors import PipelineError
from intermission.pipeline import load

finder = sys.modules["intermission.pipeline.load"]

ONE = """
from intermission import Pipeline, step

@step(version=1)
def count() -> int:
    return 1

one = Pipeline("one", [count])
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Imports of one test are none of the next one's business."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_file_with_and_without_a_name(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py", ONE)
    found = load(f"{path}:one")
    assert isinstance(found, Pipeline)
    assert load(str(path)) is found


def test_two_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = load(str(write(tmp_path / "a/mine.py", ONE)))
    second = load(str(write(tmp_path / "b/mine.py", ONE.replace('"one"', '"two"'))))
    assert (first.name, second.name) == ("one", "two")


def test_a_file_may_import_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path / "neighbour_of_mine.py", ONE)
    path = write(tmp_path / "mine.py", "from neighbour_of_mine import one")
    assert load(f"{path}:one").name == "one"


def test_a_module(tmp_path: Path) -> None:
    write(tmp_path / "installed_pipelines.py", ONE)
    sys.path.insert(0, str(tmp_path))
    assert load("installed_pipelines:one").name == "one"


def test_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "installed_pipelines.py", ONE)
    sys.path.insert(0, str(tmp_path))
    entries = [
        EntryPoint("uno", "installed_pipelines:one", finder.GROUP),
        EntryPoint("wrong", "installed_pipelines:count", finder.GROUP),
        EntryPoint("broken", "no_such_module:one", finder.GROUP),
    ]
    monkeypatch.setattr(finder, "entry_points", lambda **by: EntryPoints(entries).select(**by))
    assert load("uno").name == "one"
    assert finder.names() == ["broken", "uno", "wrong"]
    with pytest.raises(PipelineError, match="wrong is Step, not a Pipeline"):
        load("wrong")
    with pytest.raises(PipelineError, match="broken does not import: ModuleNotFoundError"):
        load("broken")
    with pytest.raises(PipelineError, match=r"no pipeline 'duo'\. Installed: broken, uno, wrong"):
        load("duo")


def test_references_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert finder.resolve("mine.py:one") == f"{tmp_path}/mine.py:one"
    assert finder.resolve("mine.py") == f"{tmp_path}/mine.py"
    assert finder.resolve("package.module:one") == "package.module:one"
    assert finder.resolve("transcribe") == "transcribe"


@pytest.mark.parametrize(
    ("text", "ref", "parts"),
    [
        (ONE, ":two", ["has no 'two'", "It has: one."]),
        (ONE, ":count", ["is Step, not a Pipeline", "Name the pipeline object."]),
        (ONE + "two = Pipeline('two', [count])", "", ["2 pipelines are defined", "one, two"]),
        ("x = 1", "", ["0 pipelines are defined", "Define one: Pipeline(name, [steps])"]),
        ("\n\n1 / 0", ":one", ["mine.py does not import: ZeroDivisionError", "(line 3 of "]),
        ("import no_such_module", ":one", ["No module named 'no_such_module' (line 1 of "]),
        ("\nimport sys; sys.exit(3)", ":one", ["does not import: SystemExit: 3 (line 2 of "]),
        ("\n\nx = (", ":one", ["does not import: SyntaxError", "line 3)."]),
        (ONE + "Pipeline('empty', [])", ":one", ["pipeline empty has no steps"]),
    ],
)
def test_a_file_that_does_not_give_a_pipeline(
    text: str, ref: str, parts: list[str], tmp_path: Path
) -> None:
    path = write(tmp_path / "mine.py", text)
    for _ in range(2):  # a failed import leaves nothing behind that a second one would take
        with pytest.raises(PipelineError) as caught:
            load(f"{path}{ref}")
        for part in parts:
            assert part in str(caught.value)
        assert "frozen" not in str(caught.value)


def test_a_missing_file_or_module(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=f"{tmp_path}/none.py is not a file. Give the path"):
        load(f"{tmp_path}/none.py:one")
    with pytest.raises(PipelineError, match=r"No module named 'no_such_module'\. Fix"):
        load("no_such_module:one")
    with pytest.raises(PipelineError, match="Empty module name"):
        load(":one")
