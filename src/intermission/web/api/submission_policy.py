"""What a server lets its clients submit: the pipelines it offers, and sources it may reach.

A pipeline is code, so clients choose among those that are installed or that the operator named;
they never name a file or a module to be loaded. A path has to be below a root the operator
allowed, whatever links lead there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from intermission.composition.locations import OBJECT_SCHEMES, Location, as_location, is_url
from intermission.composition.uploads import Uploads
from intermission.errors import NoPipeline, PipelineError, UsageError
from intermission.pipeline import Pipeline
from intermission.pipeline.catalog import Catalog
from intermission.web.problems import Problem

_FILES = (".vtt",)
"""How parameters end that are read as files, wherever a path begins."""
UPLOAD_PREFIX = "upload:"
"""What the id of an uploaded source begins with."""


class Admission:
    """Tells what clients may name from what they may not."""

    def __init__(self, uploads: Uploads, catalog: Catalog, *, roots: Sequence[Path] = ()) -> None:
        self._uploads = uploads
        self._catalog = catalog
        self._roots = [root.resolve() for root in roots]

    def pipeline(self, name: str) -> Pipeline:
        """A pipeline on offer."""
        try:
            return self._catalog.named(name).pipeline
        except NoPipeline:
            raise PipelineError(
                f"this server has no pipeline {name!r}.",
                remedy=f"It has: {', '.join(self._catalog.names()) or 'none'}. `intermission serve "
                "--pipeline` adds one.",
            ) from None

    def place(self, source: str) -> Location:
        """Where a source is: an upload, an object, or a file of this machine."""
        if source.startswith(UPLOAD_PREFIX):
            return self._uploads.place(source.removeprefix(UPLOAD_PREFIX))
        if is_url(source):
            return _object(source)
        if not source.startswith("/"):
            raise UsageError(
                f"{source!r} is neither an upload, nor a URL, nor an absolute path.",
                remedy="Upload the file and give its id, `upload:NAME`.",
            )
        return self._file(source)

    def params(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters, if none of them names a file that clients may not read."""
        for value in params.values():
            if isinstance(value, str) and (value.startswith(("/", "~")) or value.endswith(_FILES)):
                self._file(value)
        return params

    def _file(self, source: str) -> Path:
        try:
            path = Path(source).expanduser().resolve()
        except (OSError, ValueError, RuntimeError) as e:
            raise UsageError(f"{source!r} is no path: {e}.", remedy="Check the path.") from e
        if any(path.is_relative_to(root) for root in self._roots):
            return path
        raise Problem(
            403,
            "The path is not allowed",
            f"{source!r} is not below a folder whose files this server may work on.",
            remedy="Upload the file, or allow its folder with `intermission serve --root`.",
        )


def _object(url: str) -> Location:
    parts = urlsplit(url)
    if parts.scheme in OBJECT_SCHEMES and parts.netloc and parts.path.strip("/"):
        return as_location(url)
    raise UsageError(
        f"{url!r} is not the URL of an object.",
        remedy="Give one such as s3://bucket/talk.mp4; the schemes are "
        f"{', '.join(OBJECT_SCHEMES)}.",
    )
