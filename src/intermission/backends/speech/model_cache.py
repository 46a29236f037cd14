"""Whisper models by the names people use, and where their files lie on this machine.

Files lie as Hugging Face's own cache has them, `models--ORG--NAME/{blobs,refs,snapshots}`, below
`cache_dir`; what other programs downloaded into that cache is found too. Nothing here downloads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from intermission.settings import Settings

WEIGHTS_FILE = "model.bin"
_MB = 1_000_000
_SYSTRAN = "Systran/faster-whisper-"
_DISTIL = "Systran/faster-distil-whisper-"
_TURBO = "mobiuslabsgmbh/faster-whisper-large-v3-turbo"

KNOWN: dict[str, tuple[str, int]] = {
    "tiny.en": (f"{_SYSTRAN}tiny.en", 78 * _MB),
    "tiny": (f"{_SYSTRAN}tiny", 78 * _MB),
    "base.en": (f"{_SYSTRAN}base.en", 148 * _MB),
    "base": (f"{_SYSTRAN}base", 148 * _MB),
    "small.en": (f"{_SYSTRAN}small.en", 486 * _MB),
    "small": (f"{_SYSTRAN}small", 486 * _MB),
    "medium.en": (f"{_SYSTRAN}medium.en", 1530 * _MB),
    "medium": (f"{_SYSTRAN}medium", 1530 * _MB),
    "large-v1": (f"{_SYSTRAN}large-v1", 3090 * _MB),
    "large-v2": (f"{_SYSTRAN}large-v2", 3090 * _MB),
    "large-v3": (f"{_SYSTRAN}large-v3", 3090 * _MB),
    "large": (f"{_SYSTRAN}large-v3", 3090 * _MB),
    "large-v3-turbo": (_TURBO, 1620 * _MB),
    "turbo": (_TURBO, 1620 * _MB),
    "distil-small.en": (f"{_DISTIL}small.en", 335 * _MB),
    "distil-medium.en": (f"{_DISTIL}medium.en", 792 * _MB),
    "distil-large-v2": (f"{_DISTIL}large-v2", 1510 * _MB),
    "distil-large-v3": (f"{_DISTIL}large-v3", 1510 * _MB),
    "distil-large-v3.5": ("distil-whisper/distil-large-v3.5-ct2", 1510 * _MB),
}
"""The repository of each, and about how large it is."""

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def repository_of(model: str) -> str | None:
    """Of a known name, or of `ORG/NAME`; None for anything else."""
    if model in KNOWN:
        return KNOWN[model][0]
    return model if _REPOSITORY.fullmatch(model) else None


@dataclass(frozen=True)
class ModelCache:
    """A folder of repositories."""

    folder: Path

    def repository(self, name: str) -> Path:
        return self.folder / f"models--{name.replace('/', '--')}"

    def snapshot(self, name: str) -> Path | None:
        """The folder with a repository's files, once all of them are there."""
        repository = self.repository(name)
        try:
            commit = (repository / "refs" / "main").read_text().strip()
        except OSError:
            return None
        found = repository / "snapshots" / commit
        return found if (found / WEIGHTS_FILE).is_file() else None


def own_cache(settings: Settings) -> ModelCache:
    """Where models are downloaded to."""
    return ModelCache(settings.cache_dir.expanduser().resolve() / "models")


def caches(settings: Settings) -> Iterator[ModelCache]:
    """Where models are looked for: ours first."""
    yield own_cache(settings)
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    yield ModelCache(Path(os.environ.get("HF_HUB_CACHE") or Path(home, "hub")).expanduser())


def cached(settings: Settings, model: str) -> Path | None:
    """The folder of a model that was downloaded before."""
    repository = repository_of(model)
    if repository is None:
        return None
    found = (cache.snapshot(repository) for cache in caches(settings))
    return next((folder for folder in found if folder is not None), None)
