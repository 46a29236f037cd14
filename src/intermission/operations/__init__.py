"""What people ask for: run, submit, retry, cancel, inspect and the rest.

The command line and the web call what is here and nothing below it.
"""

from intermission.composition.app import App, Submission, start_reaper
from intermission.operations.job_handle import JobHandle, list_jobs, open_job
from intermission.operations.run import Reporter, RunReport, SourceRun, run

__all__ = [
    "App",
    "JobHandle",
    "Reporter",
    "RunReport",
    "SourceRun",
    "Submission",
    "list_jobs",
    "open_job",
    "run",
    "start_reaper",
]
