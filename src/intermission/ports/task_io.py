"""What running a task reads and writes, as the slot sees it.

The slot knows nothing of stores or servers: it adopts a receipt that stands, reads inputs and the
source as local files, keeps what the attempt made, commits the receipt, and publishes. Every
change is made for a lease; whatever comes too late does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from intermission.model import FileRef, Lease, Output, Receipt, Source


class TaskIO(Protocol):
    """For the tasks of one job, in one slot."""

    def adopt(self, lease: Lease, key: str, inputs: Mapping[str, str]) -> Receipt | None:
        """The receipt that stands for a task, if every file it names is there and sound, and it
        was made from `inputs`, which are digests by parameter."""
        ...

    def is_finished(self, lease: Lease) -> bool:
        """Whether a task of the batch has a receipt by now; a hint, nothing is checked."""
        ...

    def source(self, lease: Lease) -> Source:
        """The job's source; its `path` is a local file."""
        ...

    def check_source(self) -> None:
        """Raise `SourceChanged` unless the source still is what the job was planned for."""
        ...

    def files(self, lease: Lease, output: Output) -> Mapping[str, Path]:
        """Local files of an input by name, each fetched and verified when it is asked for.

        Raises `CorruptArtifact` for one that is missing or altered.
        """
        ...

    def folder(self, lease: Lease, key: str, attempt: str) -> Path:
        """Where the attempt writes its files; not made yet, and nobody else's."""
        ...

    def keep(self, lease: Lease, key: str, attempt: str, folder: Path) -> tuple[FileRef, ...]:
        """Make the files of an attempt durable, hashed, under names that no other attempt has."""
        ...

    def commit(self, lease: Lease, receipt: Receipt) -> tuple[Receipt, bool]:
        """Create the receipt. The one that stands, and whether it is this one."""
        ...

    def publish(self, lease: Lease, receipt: Receipt) -> None:
        """Copy a finished task's files to the outputs for people, where it has any."""
        ...

    def discard(self, folder: Path) -> None:
        """The attempt is over: remove what is left of it on this machine."""
        ...
