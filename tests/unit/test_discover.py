"""Finding sources: what people name, without what Intermission itself put there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from intermission.composition.discovery import find_sources, find_workspaces
from intermission.composition.locations import find_locations
from intermission.errors import EmptyPlace, SourceError
from intermission.pipelines.media_files import VIDEO_FILES
from intermission.settings import Settings

WORKSPACE = ".intermission"


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    """Files in folders, with a workspace and the outputs of an earlier run."""
    for name in (
        "b.txt",
        "a.txt",
        "a.md",
        ".hidden.txt",
        "more/c.txt",
        ".git/config.txt",
        f"{WORKSPACE}/a.txt/receipts/hear/k.json",
        f"{WORKSPACE}/outputs/words/a",
        "words/a/a.txt",
        "more/words/mine.txt",
    ):
        path = tmp_path / "talks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "talks"


def found(talks: Path, *places: object, include: tuple[str, ...] = ()) -> list[str]:
    paths = find_sources(
        [str(place) for place in places], include=include, workspace_name=WORKSPACE
    )
    assert all(path.is_absolute() for path in paths)
    return [path.relative_to(talks.resolve()).as_posix() for path in paths]


def test_a_folder_stands_for_its_files_without_ours(talks: Path) -> None:
    assert found(talks, talks) == ["a.md", "a.txt", "b.txt", "more/c.txt", "more/words/mine.txt"]


@pytest.mark.parametrize(
    ("include", "expected"),
    [
        (("*.md",), ["a.md"]),
        (("*.md", "c.*"), ["a.md", "more/c.txt"]),
        (("more/*",), ["more/c.txt", "more/words/mine.txt"]),
    ],
)
def test_include_keeps_what_matches(
    talks: Path, include: tuple[str, ...], expected: list[str]
) -> None:
    assert found(talks, talks, include=include) == expected


def test_places_keep_their_order_and_no_file_comes_twice(talks: Path) -> None:
    assert found(talks, talks / "b.txt", talks / "a.txt", talks / "b.txt") == ["b.txt", "a.txt"]
    assert found(talks, talks / "more" / "c.txt", talks / "more")[0] == "more/c.txt"
    assert found(talks, talks, talks) == found(talks, talks)
    assert found(talks, talks, talks / "*.txt", talks / "more") == found(talks, talks)


def test_a_file_by_its_name_is_taken_whatever_it_is_called(talks: Path) -> None:
    assert found(talks, talks / ".hidden.txt") == [".hidden.txt"]
    assert found(talks, talks / "a.md", include=("*.txt",)) == ["a.md"]


def test_a_pattern_stands_for_the_files_it_matches(talks: Path) -> None:
    assert found(talks, talks / "*.txt") == ["a.txt", "b.txt"]
    assert found(talks, talks / "**" / "c.txt") == ["more/c.txt"]
    odd = talks / "talk[1].txt"
    odd.write_text("")
    assert found(talks, odd) == ["talk[1].txt"]


def test_a_link_is_the_file_it_leads_to(talks: Path) -> None:
    (talks / "link.txt").symlink_to(talks / "a.txt")
    assert found(talks, talks / "link.txt", talks / "a.txt") == ["a.txt"]


@pytest.mark.parametrize(
    ("name", "include", "message"),
    [
        ("gone.txt", (), "does not exist"),
        ("*.mp4", (), "has no file"),
        ("empty", (), "has no file"),
        (".", ("*.mp4",), r"has no file that matches \*\.mp4"),
    ],
)
def test_a_place_with_nothing_in_it_is_an_error(
    talks: Path, name: str, include: tuple[str, ...], message: str
) -> None:
    (talks / "empty").mkdir()
    with pytest.raises(SourceError, match=message) as caught:
        found(talks, talks / "a.txt", talks / name, include=include)
    assert caught.value.remedy


def test_a_pipe_is_no_source(talks: Path) -> None:
    os.mkfifo(talks / "pipe")
    assert "pipe" not in found(talks, talks)
    with pytest.raises(SourceError, match="neither a file nor a folder"):
        found(talks, talks / "pipe")


def test_workspaces_are_found_by_the_sources_they_belong_to(talks: Path) -> None:
    (talks / "more" / WORKSPACE / "c.txt").mkdir(parents=True)
    (talks / WORKSPACE / ".tmp").mkdir()
    expected = [talks / WORKSPACE / "a.txt", talks / "more" / WORKSPACE / "c.txt"]
    assert list(find_workspaces(talks, WORKSPACE)) == expected
    assert list(find_workspaces(talks / "words", WORKSPACE)) == []


def test_a_pipeline_takes_the_files_of_its_kind_and_the_rest_is_counted(tmp_path: Path) -> None:
    for name in ("a.MP4", "b.mkv", "a.srt", "a.nfo", "cover.jpg", "notes"):
        (tmp_path / name).write_text("x")

    def names(*include: str, given: Path = tmp_path) -> tuple[list[str], int]:
        found = find_locations([str(given)], include, Settings(), "out", VIDEO_FILES)
        return [one.name for one in found.sources], found.skipped

    assert names() == (["a.MP4", "b.mkv"], 4)
    assert names("*.srt") == (["a.srt"], 0)
    assert len(names("*")[0]) == 6
    assert names(given=tmp_path / "notes") == (["notes"], 0), "a file that is named is meant"


def test_a_folder_without_any_is_told_with_what_takes_all(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(EmptyPlace, match=r"none of 1 files .* --include '\*'"):
        find_locations([str(tmp_path)], (), Settings(), "out", VIDEO_FILES)
