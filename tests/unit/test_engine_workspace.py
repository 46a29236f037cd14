"""Who is alive in a workspace: a lock that the kernel frees tells, and nothing else does."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from intermission.backends.work_source.worker_locks import alive, bury, dead, living
from intermission.engine.workspace import Workspace
from intermission.errors import EnvironmentFault


def _none() -> Any:
    raise AssertionError("nothing is opened here")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "workspace", _none, None, _none)


def test_nobody_was_ever_here(workspace: Workspace) -> None:
    assert living(workspace) == dead(workspace) == []


def test_a_worker_lives_for_as_long_as_it_holds_its_lock(workspace: Workspace) -> None:
    with alive(workspace, "w1"):
        with alive(workspace, "w2"):
            assert living(workspace) == ["w1", "w2"]
            assert dead(workspace) == []
        assert living(workspace) == ["w1"]
        assert dead(workspace) == ["w2"]
    assert dead(workspace) == ["w1", "w2"]


def test_looking_takes_no_lock_away(workspace: Workspace) -> None:
    with alive(workspace, "w1"):
        for _ in range(3):
            assert dead(workspace) == []
            assert living(workspace) == ["w1"]


def test_the_dead_are_told_until_they_are_buried(workspace: Workspace) -> None:
    with alive(workspace, "w1"):
        pass
    assert dead(workspace) == dead(workspace) == ["w1"]
    bury(workspace, ["w1", "unknown"])
    assert dead(workspace) == []


def test_a_lock_in_the_making_is_nobodys(workspace: Workspace) -> None:
    """A worker that is killed, or looked at, before it has its lock never was."""
    folder = workspace.folder / "workers"
    folder.mkdir(parents=True)
    (folder / ".w1").touch()
    assert living(workspace) == dead(workspace) == []


def test_a_lock_held_by_another_open_file_counts(workspace: Workspace) -> None:
    with alive(workspace, "w1"):
        pass
    fd = os.open(workspace.folder / "workers" / "w1", os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        assert living(workspace) == ["w1"]
    finally:
        os.close(fd)
    assert dead(workspace) == ["w1"]


def test_an_error_on_the_way_frees_the_lock(workspace: Workspace) -> None:
    with pytest.raises(RuntimeError), alive(workspace, "w1"):
        raise RuntimeError
    assert dead(workspace) == ["w1"]


def test_a_workspace_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "workspace").write_text("a file")
    broken = Workspace(tmp_path / "workspace", _none, None, _none)
    with pytest.raises(EnvironmentFault, match="announcing this worker") as caught:
        alive(broken, "w1").__enter__()
    assert caught.value.remedy
