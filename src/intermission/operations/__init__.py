"""What people ask for: run, submit, retry, cancel, inspect and the rest.

The command line and the web call what is here and nothing below it.
"""

from intermission.composition.app import App, Submission, start_reaper
from intermission.operations.job_lookup import Found, all_jobs, find_job, find_task
from intermission.operations.run import Reporter, RunReport, SourceRun, run

__all__ = [
    "App",
    "Found",
    "Reporter",
    "RunReport",
    "SourceRun",
    "Submission",
    "all_jobs",
    "find_job",
    "find_task",
    "run",
    "start_reaper",
]
