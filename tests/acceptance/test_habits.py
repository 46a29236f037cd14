"""What people type by habit from other tools works, or is answered with what does it here."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

import samples
from acceptance.command_line import Cli
from intermission.cli.habits import COMMANDS, OPTIONS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "coming-from-other-tools.md"
ROW = re.compile(r"^\| (\w+) \| `intermission (.+)` \| (works|`.+`) \|$", re.MULTILINE)
LINES = [(words, says) for _, words, says in ROW.findall(PAGE.read_text())]


def test_there_are_twenty() -> None:
    assert len(LINES) == 20
    assert {line.split(" | ")[0] for line in PAGE.read_text().splitlines()[8:] if line} >= {
        "| whisper",
        "| ffmpeg",
        "| HandBrake",
        "| Nextflow",
        "| Celery",
    }


@pytest.mark.parametrize(("words", "says"), [one for one in LINES if one[1] != "works"])
def test_a_habit_is_answered_with_what_does_it_here(cli: Cli, words: str, says: str) -> None:
    for name in ("talk.wav", "video.mp4"):
        (cli.folder / name).write_bytes(b"")
    ended = cli(*shlex.split(words), code=2)
    assert says.strip("`") in " ".join(ended.err.split())
    assert not (cli.folder / ".intermission").exists()


@pytest.mark.parametrize("words", [words for words, says in LINES if says == "works"])
def test_a_habit_works(cli: Cli, words: str) -> None:
    shutil.copy(samples.address()[0], cli.folder / "talk.wav")
    cli(*shlex.split(words))
    assert (cli.folder / "out" / "talk" / "talk.srt").read_text().strip()


def test_no_answer_names_what_is_not_there(cli: Cli) -> None:
    commands = cli("--help").out
    for command in COMMANDS.values():
        assert re.search(rf"\b{command}\b", commands), command
    offered = cli("run", "transcribe", "--help").out + cli("run", "transcode", "--help").out
    for remedy in OPTIONS.values():
        for option in re.findall(r"--[a-z-]+", remedy):
            assert option in offered, (option, remedy)
