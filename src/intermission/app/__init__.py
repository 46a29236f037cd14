"""The composition root: the one place that picks backends and puts the parts together.

The command line and the web call what is here and nothing below it.
"""

from intermission.app.composition import App, Submission
from intermission.app.found import Found, all_jobs, find_job, find_task
from intermission.app.run import Reporter, RunReport, SourceRun, run, start_guardian

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
    "start_guardian",
]
