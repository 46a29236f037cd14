"""The page of events says what the command line prints: no more, no less, not otherwise."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import PIPELINES, Cli

ROOT = Path(__file__).parents[2]
EVENTS = (ROOT / "docs" / "reference" / "events.md").read_text()
EXAMPLES: dict[str, Any] = {
    name: json.loads(block)
    for name, block in re.findall(r"^### (\w+)$.*?^```json\n(.*?)^```", EVENTS, re.M | re.S)
}


def test_every_event_has_a_heading_and_an_example() -> None:
    sources = (ROOT / "src" / "intermission" / "cli").glob("*.py")
    text = "".join(path.read_text() for path in sources)
    printed = set(re.findall(r'"event": "(\w+)"', text)) | {"task", "job", "progress", "summary"}
    assert EXAMPLES.keys() == printed
    assert all(name == example["event"] for name, example in EXAMPLES.items())


def same_shape(example: Any, found: Any, where: str) -> None:
    """The same names at every level that is described; lists by their first element."""
    if isinstance(example, dict) and isinstance(found, dict):
        if where.rpartition(".")[2] in (
            "steps",
            "params",
            "parts",
            "inputs",
            "settings",
            "parameters",
        ):
            return
        assert example.keys() == found.keys(), where
        for name, value in example.items():
            same_shape(value, found[name], f"{where}.{name}")
    elif isinstance(example, list) and isinstance(found, list) and example and found:
        same_shape(example[0], found[0], f"{where}[]")


def documents(cli: Cli) -> Iterator[Any]:
    """One of every shape there is, from the commands themselves."""
    source, letters = cli.source(), f"{PIPELINES}:letters"
    yield from cli.run("letters", source, "--jsonl").events
    yield cli.run("letters", "nowhere", "--json", code=1).json
    yield from cli("watch", source, "--jsonl").events
    yield cli("plan", letters, source, "--json").json
    yield cli("plan", letters, "--json").json
    for args in ("ls", "gc", "doctor", ("config", "show"), ("models", "list")):
        yield cli(*([args] if isinstance(args, str) else args), "--json").json
    grouped = cli.source("b.txt")
    yield from cli.run("grouped", grouped, "--jsonl").events
    yield cli("status", grouped, "--json").json
    for command in ("status", "inspect", "rebuild"):
        yield cli(command, source, "--json").json
    yield cli("inspect", source, "whole", "--json").json
    yield cli("why", source, "whole", "--json").json
    yield cli("logs", source, "shout[0]", "--json").json
    shared = {"INTERMISSION_LEDGER": str(cli.folder / "shared.sqlite")}
    yield cli("submit", letters, source, "--json", env=shared).json
    yield cli("limit", "pipeline:letters", "--running", "2", "--json", env=shared).json
    yield cli("failures", "--json", env=shared).json
    yield cli("workers", "--json", env=shared).json
    cli("cancel", source, env=shared)
    yield cli("prune", "--older-than", "0s", "--json", env=shared).json


def test_what_is_printed_has_the_shape_that_is_documented(cli: Cli) -> None:
    seen: set[str] = set()
    for document in documents(cli):
        seen.add(document["event"])
        same_shape(EXAMPLES[document["event"]], document, document["event"])
    # A drain is watched where runs are interrupted, a key where there is a server, progress where a
    # task takes long, a finish where one was deferred, and a model where one is downloaded.
    elsewhere = {"draining", "progress", "registered", "rotated", "finished", "model"}
    assert seen == EXAMPLES.keys() - elsewhere
    assert EXAMPLES["progress"].keys() == EXAMPLES["task"].keys()


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_examples_carry_the_version(name: str) -> None:
    assert EXAMPLES[name]["v"] == 1
