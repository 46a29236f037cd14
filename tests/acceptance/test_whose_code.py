"""Whose code runs: what is installed, or named by whoever starts the process; nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import PIPELINES, Cli, in_sentence, until

STRANGE = """
import os
from pathlib import Path
from intermission import Context, Pipeline, step

with Path(os.environ["IMPORTED"]).open("a") as file:
    file.write("imported\\n")

@step(version=1)
def answer(ctx: Context) -> int:
    return 42

strange = Pipeline("strange", [answer])
"""


class Strange:
    """A pipeline in a file, which leaves a mark wherever somebody imports it."""

    def __init__(self, cli: Cli) -> None:
        self.path = cli.folder / "elsewhere" / "strange.py"
        self.path.parent.mkdir()
        self.path.write_text(STRANGE)
        self.ref = f"{self.path}:strange"
        self._mark = cli.folder / "imported"
        cli.env |= {"IMPORTED": str(self._mark), "INTERMISSION_PIPELINES": ""}

    def was_imported(self) -> bool:
        """Since the last look."""
        found = self._mark.exists()
        self._mark.unlink(missing_ok=True)
        return found


@pytest.fixture
def strange(cli: Cli) -> Strange:
    return Strange(cli)


def test_a_job_record_in_a_workspace_makes_nobody_import(cli: Cli, strange: Strange) -> None:
    """Whoever may write into a workspace can write job records: they are data."""
    source = cli.source()
    cli("run", strange.ref, source)
    assert strange.was_imported()
    workspace = cli.workspace(source)
    (record,) = (workspace / "jobs").glob("*.json")
    record.write_text(json.dumps(json.loads(record.read_text()) | {"ref": strange.ref}))
    versions = workspace / "published/.versions/strange.json"
    versions.parent.mkdir(parents=True, exist_ok=True)
    versions.write_text(json.dumps({"first": "a", "front": record.stem, "former": ["b"]}))
    cli("gc", cli.folder, "--grace-s", 60)
    assert not strange.was_imported()
    cli.end(cli.start("rebuild", source))
    assert not strange.was_imported()


def test_a_worker_runs_its_own_pipelines_and_imports_no_other(cli: Cli, strange: Strange) -> None:
    cli.env["INTERMISSION_LEDGER"] = str(cli.folder / "ledger.sqlite")
    cli("submit", strange.ref, cli.source("strange.txt"))
    assert strange.was_imported()
    cli("submit", f"{PIPELINES}:letters", cli.source("letters.txt"))

    def states() -> dict[str, str]:
        jobs = cli("ls", "--json").json["jobs"]
        return {job["pipeline"]: job["state"] for job in jobs}

    cli.start("worker", "--pipeline", f"{PIPELINES}:letters")
    until(lambda: states()["letters"] == "done")
    assert not strange.was_imported()
    assert states()["strange"] not in ("failed", "done")  # it waits for a worker that has it
    cli.start("worker", "--pipeline", strange.ref)
    until(lambda: states()["strange"] == "done")


def test_retry_says_whose_pipeline_is_missing(cli: Cli, strange: Strange) -> None:
    source = cli.source()
    cli("run", strange.ref, source)
    strange.was_imported()
    in_sentence(cli("retry", source, "--fresh", code=2).err, "'strange'", "--pipeline")
    assert not strange.was_imported()
    cli("retry", source, "--fresh", "--pipeline", strange.ref)
    cli("retry", source, "--fresh", env={"INTERMISSION_PIPELINES": str(strange.path)})


def test_a_pipeline_of_the_settings_has_a_name(cli: Cli, strange: Strange) -> None:
    (cli.folder / "intermission.toml").write_text(f'pipelines = ["{strange.ref}"]\n')
    cli("run", "strange", cli.source())
    in_sentence(cli("run", "stranger", cli.source(), code=2).err, "'stranger'", "strange")


def test_two_pipelines_of_one_name_are_refused(cli: Cli, strange: Strange, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text(STRANGE.replace("return 42", "return 43"))
    env = {"INTERMISSION_PIPELINES": f"{strange.path},{other}"}
    in_sentence(cli("run", "strange", cli.source(), code=2, env=env).err, "'strange'", str(other))
