"""A host's scratch: a small file system of its own, which can be full.

Where nothing may be mounted, it is a folder, and a fault that fills it does nothing: the run says
so and counts no such fault.
"""

from __future__ import annotations

import errno
import os
import subprocess
from contextlib import suppress
from pathlib import Path

SIZE_MIB = 48
_FILLER = "filler"


class Scratch:
    """A mounted tmpfs, or a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        option = f"size={SIZE_MIB}m"
        argv = ["mount", "-t", "tmpfs", "-o", option, "chaos", str(folder)]
        try:
            self.is_mounted = subprocess.run(argv, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            self.is_mounted = False

    def fill(self) -> bool:
        """Leave no byte free; False where that is impossible."""
        if not self.is_mounted:
            return False
        block = bytes(1024 * 1024)
        with (self.folder / _FILLER).open("wb", buffering=0) as stream:
            while len(block) >= 1:
                try:
                    stream.write(block)
                except OSError as e:
                    if e.errno != errno.ENOSPC:
                        raise
                    block = block[: len(block) // 2]
        return True

    def free(self) -> None:
        (self.folder / _FILLER).unlink(missing_ok=True)

    def used_bytes(self) -> int:
        """What the worker has put there."""
        total = 0
        for folder, _, names in os.walk(self.folder):
            for name in names:
                with suppress(FileNotFoundError):
                    if name != _FILLER:
                        total += (Path(folder) / name).lstat().st_size
        return total

    def close(self) -> None:
        if self.is_mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=False)
