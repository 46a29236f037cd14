"""Speech models: which there are, which lie on this machine, and fetching one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from intermission.backends.speech.model_cache import KNOWN, cached, own_cache, repository_of
from intermission.backends.speech.model_download import download
from intermission.backends.speech.weights import packaged
from intermission.errors import UsageError
from intermission.operations.documents import ModelDocument
from intermission.settings import Settings


def list_models(settings: Settings) -> list[ModelDocument]:
    """Every known model, the small ones first."""
    return [_document(settings, name) for name in KNOWN]


def download_model(
    settings: Settings, name: str, on_progress: Callable[[int, int], None]
) -> ModelDocument:
    """Have the newest files of a model on this machine; `on_progress` gets bytes and their sum."""
    repository = repository_of(name)
    if repository is None:
        raise UsageError(
            f"there is no speech model {name!r}.",
            remedy="`intermission models list` lists them; any other is named ORG/NAME.",
        )
    folder = download(repository, own_cache(settings), settings.model_hub_url, on_progress)
    return _described(name, repository, folder)


def _document(settings: Settings, name: str) -> ModelDocument:
    repository, about_bytes = KNOWN[name]
    found = packaged(name)
    folder = cached(settings, name) or (None if found is None else found[1])
    if folder is not None:
        return _described(name, repository, folder)
    return ModelDocument(
        name=name, repository=repository, present=False, size_bytes=about_bytes, path=None
    )


def _described(name: str, repository: str, folder: Path) -> ModelDocument:
    size_bytes = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    return ModelDocument(
        name=name, repository=repository, present=True, size_bytes=size_bytes, path=str(folder)
    )
