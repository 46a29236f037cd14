"""The public API: what a user imports to write a pipeline.

Nothing here runs a task, touches a ledger or knows where a store is. Pipelines are data: a
checked graph of steps, and how each step's values become JSON and back.
"""

from intermission.pipeline.chunk import Chunk
from intermission.pipeline.context import Context, Deferred
from intermission.pipeline.file import File, Files
from intermission.pipeline.graph import Pipeline
from intermission.pipeline.load import load
from intermission.pipeline.step import Step, step

__all__ = ["Chunk", "Context", "Deferred", "File", "Files", "Pipeline", "Step", "load", "step"]
