"""The examples as a newcomer meets them: real processes, killed in the middle, continued."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMAND = Path(sys.prefix, "bin", "intermission")
SLOTS = 2
KILLS = 3
TIMEOUT_S = 60.0


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A copy of the texts alone."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for text in EXAMPLES.glob("texts/*.txt"):
        shutil.copy(text, folder)
    return folder


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """`intermission run` as a process, in a folder, untouched by settings of this machine."""
    return subprocess.Popen(
        [str(COMMAND), "run", *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "INTERMISSION_SLOTS": str(SLOTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(folder: Path, *arguments: str) -> str:
    """What a run that ends well says."""
    process = start(folder, *arguments)
    said, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, said
    return said


def until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not happen in {TIMEOUT_S:g} s"
        time.sleep(0.01)


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short(example: Path) -> None:
    longest = 150 if example.name == "tiny_worker.py" else 60  # a whole worker, not a pipeline
    assert len(example.read_text().splitlines()) < longest


def test_wordcount_counts_words(texts: Path) -> None:
    run(texts.parent, f"{EXAMPLES}/wordcount.py:wordcount", "texts")
    for text in texts.glob("*.txt"):
        words = re.findall(r"[a-z]+(?:['\u2019][a-z]+)*", text.read_text().lower())
        counts = json.loads((texts / "wordcount" / text.stem / "counts.json").read_text())
        assert counts == Counter(words)


def test_wordcount_runs_nothing_twice(texts: Path) -> None:
    command = (f"{EXAMPLES}/wordcount.py:wordcount", "texts")
    run(texts.parent, *command)
    receipts = set(texts.rglob("receipts/*/*.json"))
    assert f"reused {len(receipts)} of {len(receipts)} tasks" in run(texts.parent, *command)
    assert set(texts.rglob("receipts/*/*.json")) == receipts


def calls(folder: Path) -> Counter[str]:
    """How often the paid API was called, by idempotency key."""
    bill = folder / "calls.txt"
    return Counter(bill.read_text().splitlines()) if bill.exists() else Counter()


def finished(folder: Path) -> set[str]:
    return {receipt.stem for receipt in folder.rglob("receipts/ask/*.json")}


def test_no_finished_call_of_the_paid_api_is_repeated(texts: Path, tmp_path: Path) -> None:
    verses = "".join((texts / "raven.txt").read_text().splitlines(keepends=True)[:30])
    folders = {name: tmp_path / name for name in ("undisturbed", "disturbed")}
    for folder in folders.values():
        folder.mkdir()
        (folder / "verses.txt").write_text(verses)
    command = (f"{EXAMPLES}/paid_api.py:paid_api", "verses.txt")
    asked = sum(bool(line.strip()) for line in verses.splitlines())

    run(folders["undisturbed"], *command)
    assert sorted(calls(folders["undisturbed"]).values()) == [1] * asked

    folder = folders["disturbed"]
    paid: dict[str, int] = {}
    for kill in range(1, KILLS + 1):
        process = start(folder, *command)
        until(lambda kill=kill: len(finished(folder)) >= 5 * kill, "some calls to finish")
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=TIMEOUT_S)
        done = finished(folder)
        now = calls(folder)
        paid |= {key: now[key] for key in done if key not in paid}
        assert len(paid) < asked, "it was killed too late to show anything"
    run(folder, *command)

    now = calls(folder)
    assert {key: now[key] for key in paid} == paid, "a finished call was repeated"
    assert len(now) == asked
    assert now.total() <= asked + KILLS * SLOTS, "more was repeated than was in flight"
    answers = [(each / "answers/verses/answers.txt").read_bytes() for each in folders.values()]
    assert answers[0] == answers[1]
