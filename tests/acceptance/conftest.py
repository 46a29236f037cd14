"""What the acceptance tests share: the command, in an empty folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    cli = Cli(tmp_path)
    yield cli
    cli.kill_all()
