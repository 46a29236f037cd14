"""README and docs are true: every command in them is run, and answers what the page shows.

In a `console` block, lines after `$ ` are commands and the lines below each are its output.
Times, keys and the order of lines may differ, and `...` stands for any more lines. A comment
right above a block says what else is to be known:

    <!-- file: NAME -->        the block is the content of this file
    <!-- exits: CODE -->       the last command of the block ends with this code
    <!-- numbers: chance -->   the numbers may differ: they say how far a killed run came
    <!-- not run: REASON -->   it is not

The blocks of a page are one shell session, in a folder that has a copy of the examples; what is to
be killed is given more time where the machine is busy. Nothing is downloaded there: the talk that
some pages transcribe comes from the cache of samples.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import samples

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PATIENT = Path(__file__).with_name("patient_timeout.py")
PAGE_S = 800
"""How long the commands of a page may take, on a machine that is busy with something else."""
KILLED = 137
SHELL = ("console", "sh", "bash", "shell")

_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<kind>\w*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_PROGRESS = re.compile(r"([\d#]+ of [\d#]+ files done, )?\w+ [\d#]+/[\d#]+")
_LINK = re.compile(r"\]\((?!https?:)(?P<path>[^)#]*)(?:#(?P<anchor>[^)]*))?\)")
_BEGIN, _END = "\x01begin", "\x01end"


@dataclass
class Command:
    """A command of a page, the output the page shows for it, and how it must end."""

    text: str
    shown: list[str] = field(default_factory=list[str])
    code: int = 0
    chance: bool = False


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """(mark, kind, body) of every fenced block."""
    found = _BLOCK.finditer(page.read_text())
    return [(block["mark"] or "", block["kind"], block["body"]) for block in found]


def commands(mark: str, body: str) -> list[Command]:
    found: list[Command] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], chance=mark == "numbers: chance"))
        else:
            assert found, f"{line!r} is the output of no command"
            found[-1].shown.append(line)
    if mark.startswith("exits: "):
        found[-1].code = int(mark.removeprefix("exits: "))
    return found


def session(page: Path, staging: Path) -> tuple[str, list[Command]]:
    """The page as one shell script, and the commands whose output it marks."""
    script: list[str] = []
    run: list[Command] = []
    for number, (mark, kind, body) in enumerate(blocks(page)):
        if mark.startswith("file: "):
            (staging / str(number)).write_text(body)
            script.append(f"cp '{staging}/{number}' '{mark.removeprefix('file: ')}'")
        elif kind in SHELL and not mark.startswith("not run: "):
            for command in commands(mark, body):
                run.append(command)
                script.append(f"printf '{_BEGIN}\\n'\n{command.text}\nprintf '{_END}%s\\n' $?")
    return "\n".join(script) + "\n", run


def sandbox(folder: Path) -> Path:
    """A checkout as a newcomer has it after the first `make`, without its sources."""
    here = folder / "intermission"
    shutil.copytree(
        ROOT / "examples",
        here / "examples",
        ignore=lambda at, names: [n for n in names if n[0] in "._" or is_output(Path(at, n))],
    )
    for file in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / file, here / file)
        os.utime(here / file, (0, 0))
    (here / ".venv").mkdir()
    (here / ".venv" / "bin").symlink_to(Path(sys.prefix, "bin"))
    for extra in ("installed", "installed-transcribe"):
        (here / ".venv" / extra).touch()
    return here


def is_output(path: Path) -> bool:
    return path.is_dir() and path.parent.name == "texts"


def play(script: str, here: Path) -> list[tuple[list[str], int]]:
    """Output and exit code of every command, as a person at a terminal without colours sees it."""
    own = here.parent / "bin"
    own.mkdir()
    (own / "timeout").write_text(f'#!/bin/sh\nexec {sys.executable} {PATIENT} "$@"\n')
    (own / "timeout").chmod(0o755)
    environ = {
        "PATH": f"{own}:{sys.prefix}/bin:{os.environ['PATH']}",
        "HOME": str(here.parent),
        "LANG": "C.UTF-8",
        "INTERMISSION_SLOTS": "2",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=here,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PAGE_S,
    )
    parts = re.findall(rf"{_BEGIN}\n(.*?){_END}(\d+)\n", done.stdout, re.DOTALL)
    return [(output.splitlines(), int(code)) for output, code in parts]


def plain(line: str, here: Path, *, chance: bool) -> str:
    """A line without what differs from run to run and from place to place."""
    line = line.replace(str(here), "/home/you/intermission")
    line = re.sub(r"^bash: line \d+: +\d+ (Killed).*", r"\1", line)
    line = re.sub(r"\b20\d\d-\d\d-\d\d[T ][\d:.,]+", "#", line)
    line = re.sub(r"\b(\d{5}-)?(?=[0-9a-f]*\d)[0-9a-f]{8,}\b", "#", line)
    line = re.sub(r"\b[\d:.]+ ?(s|min)\b|\b\d+\.\d+\b", "#", line)
    if chance:
        line = re.sub(r"\d+", "#", line)
        line = re.sub(r": (started|# of # tasks done before)$", ": opened", line)
    return " ".join(line.split())


def matches(shown: list[str], found: list[str]) -> bool:
    """Whether the output has the lines that the page shows, and no other unless it says `...`.

    Tasks and sources overlap, so the order of lines is chance. So is how often, on a busy
    machine, a run says how far it is.
    """
    there = Counter(line for line in found if not _PROGRESS.match(line))
    wanted = Counter(line for line in shown if not _PROGRESS.match(line))
    more = wanted.pop("...", 0)
    return wanted <= there if more else wanted == there


@pytest.mark.timeout(PAGE_S + 100)
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_does_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    staging.mkdir()
    script, run = session(page, staging)
    if not run:
        return
    here = sandbox(tmp_path)
    if "talk.mp4" in script:
        cached = samples.talk().parents[4]
        (tmp_path / ".cache").mkdir()
        (tmp_path / ".cache" / cached.name).symlink_to(cached)
    played = play(script, here)
    assert len(played) == len(run), f"the session ended early: {played[-1:]}"
    for command, (output, code) in zip(run, played, strict=True):
        told = f"{name(page)}: $ {command.text}\n" + "\n".join(output)
        assert code == command.code, told
        shown, found = (
            [plain(line, here, chance=command.chance) for line in lines if line.strip()]
            for lines in (command.shown, output)
        )
        said_less = command.code == KILLED and not Counter(found) - Counter(shown)
        assert not shown or said_less or matches(shown, found), told


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    for mark, kind, body in blocks(page):
        assert re.fullmatch(
            r"|file: \S+|exits: \d+|numbers: chance|not run: \w.+|generated: .+|end", mark
        ), mark
        if kind == "python":
            assert mark.startswith(("file: ", "not run: ")), body
        if kind not in SHELL:
            assert not re.search(r"^\$ ", body, re.MULTILINE), body


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in _LINK.finditer(page.read_text()):
        target = (page.parent / link["path"]).resolve() if link["path"] else page
        assert target.exists(), f"{name(page)}: {link[0]}"
        if link["anchor"]:
            heads = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
            assert link["anchor"] in anchors, f"{name(page)}: {link[0]}"


def test_every_page_is_listed() -> None:
    index = ROOT / "docs" / "index.md"
    listed = {(index.parent / link["path"]).resolve() for link in _LINK.finditer(index.read_text())}
    assert {page for page in PAGES if page.parent.name != ROOT.name} <= listed | {index}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 120
