"""What `--json` and `--jsonl` print: versioned shapes, documented in docs/reference/events.md.

Within a version fields are added, never removed or given another meaning.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from intermission.errors import IntermissionError
    from intermission.model import JobRow, TaskRow
    from intermission.operations import Found, RunReport, SourceRun

VERSION = 1


def emit(document: Mapping[str, Any]) -> None:
    """One line on standard output, there as soon as it is written."""
    versioned = {"v": VERSION, **document}
    text = json.dumps(versioned, ensure_ascii=False)
    if not text.isascii() and not _is_utf8(text):
        text = json.dumps(versioned)  # a file's name may be bytes that are no text
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def when(at_ms: int | None) -> str | None:
    from intermission.composition.documents import timestamp

    return None if at_ms is None else timestamp(at_ms)


def error_fields(error: IntermissionError) -> dict[str, Any]:
    return {"kind": type(error).__name__, "message": error.message, "remedy": error.remedy}


def error_document(error: IntermissionError) -> dict[str, Any]:
    return {"event": "error", "exit_code": error.exit_code, "error": error_fields(error)}


def steps_fields(row: JobRow) -> dict[str, dict[str, int]]:
    """Tasks by step and state, in the order of the pipeline."""
    return {
        spec.name: {str(state): n for state, n in row.counts.get(spec.name, {}).items()}
        for spec in row.job.steps
    }


def job_fields(found: Found) -> dict[str, Any]:
    row = found.row
    return {
        "job": row.job.key,
        "pipeline": row.job.pipeline,
        "ref": row.job.ref,
        "source": str(found.source),
        "params": json.loads(row.job.params),
        "state": str(row.state),
        "reason": row.reason,
        "created": when(row.created_ms),
        "updated": when(row.updated_ms),
        "steps": steps_fields(row),
    }


def task_fields(row: TaskRow) -> dict[str, Any]:
    return {
        "task": row.name,
        "step": row.step,
        "index": row.index,
        "key": row.key,
        "chunk": None if row.chunk is None else json.loads(row.chunk),
        "state": str(row.state),
        "attempts": row.attempts,
        "fence": row.fence,
        "worker": row.worker,
        "progress": row.progress,
        "reused": row.adopted,
        "error": row.error,
        "message": row.message,
        "started": when(row.started_ms),
        "ended": when(row.ended_ms),
        "ready": when(row.ready_ms),
    }


def source_fields(run: SourceRun) -> dict[str, Any]:
    row = run.row
    state = "pending" if row is None else str(row.state)
    return {
        "source": str(run.path),
        "job": None if run.job is None else run.job.key,
        "state": state if run.error is None else "failed",
        "total": 0 if row is None else row.total(),
        "reused": run.reused + run.stats.adopted.total(),
        "executed": run.stats.executed.total(),
        "steps": {} if row is None else steps_fields(row),
        "outputs": [str(path) for path in run.outputs],
        "failures": [task_fields(failed) for failed in run.failures],
        "warnings": list(run.stats.warnings),
        "error": None if run.error is None else error_fields(run.error),
    }


def report_fields(report: RunReport, exit_code: int) -> dict[str, Any]:
    sources = [source_fields(run) for run in report.sources]
    return {
        "event": "summary",
        "exit_code": exit_code,
        "interrupted": report.interrupted,
        "total": sum(source["total"] for source in sources),
        "reused": sum(source["reused"] for source in sources),
        "executed": sum(source["executed"] for source in sources),
        "sources": sources,
    }
