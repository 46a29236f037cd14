"""What callers give: sources as one or several, settings by their names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from intermission.errors import UsageError
from intermission.operations import App
from intermission.settings import load_settings

Place = str | os.PathLike[str]
Sources = Place | Iterable[Place]
"""A file, a folder, a URL or a pattern; or several of them."""


def places_of(sources: Sources) -> list[str]:
    given = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    if not given:
        raise UsageError("no source is given.", remedy="Name files or folders to run it over.")
    return [os.fspath(one) for one in given]


def app_with(settings: Mapping[str, Any] | None, **more: Any) -> App:
    """The app with the settings that hold here; these come before all."""
    return App(load_settings({**(settings or {}), **more}).settings)
