"""Samples shared by the media tests, each made once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from intermission.media import sandbox
from media_samples import make


@pytest.fixture(scope="session")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seconds of frame and audio, key frames at 0 and 1 s."""
    return make(tmp_path_factory.mktemp("video") / "video.mp4", language="deu")


@pytest.fixture(scope="session")
def landlock() -> int:
    """The kernel's version of Landlock; without it the test skips, or fails on CI."""
    version = sandbox.landlock_version()
    if not version and os.environ.get("CI") == "true":
        pytest.fail("this kernel has no Landlock, and on CI nothing may be skipped")
    if not version:
        pytest.skip("this kernel has no Landlock")
    return version
