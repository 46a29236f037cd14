"""Intermission: media pipelines that survive interruption.

The names below are all that a pipeline's author needs, and what programs and notebooks use to run
pipelines; they are imported late, so that `import intermission` costs nothing until one is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from intermission.client import Client, run, submit
    from intermission.errors import IntermissionError, Interrupted, Permanent, TaskError
    from intermission.model import Groups, Source
    from intermission.pipeline import Chunk, Context, File, Files, Pipeline, step

__version__ = "0.1.0"
__all__ = [
    "Chunk",
    "Client",
    "Context",
    "File",
    "Files",
    "Groups",
    "IntermissionError",
    "Interrupted",
    "Permanent",
    "Pipeline",
    "Source",
    "TaskError",
    "run",
    "step",
    "submit",
]

_HOME = {
    "Client": "client",
    "run": "client",
    "submit": "client",
    "IntermissionError": "errors",
    "Interrupted": "errors",
    "Permanent": "errors",
    "TaskError": "errors",
    "Groups": "model",
    "Source": "model",
    "Chunk": "pipeline",
    "Context": "pipeline",
    "File": "pipeline",
    "Files": "pipeline",
    "Pipeline": "pipeline",
    "step": "pipeline",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'intermission' has no attribute {name!r}")
    return getattr(import_module(f"intermission.{_HOME[name]}"), name)
