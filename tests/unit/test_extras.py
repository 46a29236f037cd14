"""The extras that people guess have what their feature needs, by the package's own metadata."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGE = ROOT / "src" / "intermission"
DEVELOPMENT = {"test", "bench", "dev", "all"}
DISTRIBUTIONS = {
    "av": "av",
    "botocore": "botocore",
    "fastapi": "fastapi",
    "faster_whisper": "faster-whisper",
    "httpx": "httpx",
    "numpy": "numpy",
    "obstore": "obstore",
    "prometheus_client": "prometheus-client",
    "psycopg": "psycopg",
    "redis": "redis",
    "uvicorn": "uvicorn",
}
"""What the product imports, by what has to be installed for it."""


def packages(extra: str) -> set[str]:
    """Everything an extra brings, through the extras that it names."""
    found: set[str] = set()
    for text in PROJECT["optional-dependencies"][extra]:
        requirement = Requirement(text)
        if requirement.name == "intermission":
            found.update(*map(packages, requirement.extras))
        else:
            found.add(requirement.name)
    return found


def imported(*paths: str) -> set[str]:
    """The packages with an extra that these files or folders import, anywhere in them."""
    files = [file for path in paths for file in (PACKAGE / path).parent.rglob("*.py")]
    files = [file for file in files if any(file.is_relative_to(PACKAGE / path) for path in paths)]
    assert files
    tops: set[str] = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                tops.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                tops.add(node.module.partition(".")[0])
    return {DISTRIBUTIONS[top] for top in tops & DISTRIBUTIONS.keys()}


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        ("transcribe", ("pipelines/transcribe", "backends/speech", "media")),
        ("transcode", ("pipelines/transcode", "media")),
        ("serve", ("web", "backends/http")),
    ],
)
def test_an_extra_brings_what_its_code_imports(extra: str, code: tuple[str, ...]) -> None:
    assert imported(*code) <= packages(extra)


def test_all_is_every_feature_and_no_tool_of_development() -> None:
    features = PROJECT["optional-dependencies"].keys() - DEVELOPMENT
    assert packages("all") == set().union(*map(packages, features))
    assert not packages("all") & {"pytest", "ruff", "pyright"}


def test_the_versions_of_python_are_declared() -> None:
    declared = [one for one in PROJECT["classifiers"] if one.startswith("Programming Language")]
    wanted = [f"Programming Language :: Python :: 3.{minor}" for minor in range(11, 15)]
    assert set(wanted) <= set(declared)
    assert PROJECT["requires-python"] == ">=3.11"
