"""The setting `overrides`: parameters that some sources need otherwise than the rest."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from intermission.settings.watch_rules import split


class Override(BaseModel):
    """One of the `overrides`. A description says what a value must be."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pipeline: str = Field(min_length=1, description="the name of a pipeline, such as transcode")
    sources: Annotated[tuple[str, ...], BeforeValidator(split)] = Field(
        min_length=1, description="names or ends of paths, such as concert-*.mp4 or 4k/*"
    )
    params: dict[str, Any] = Field(description="parameters of the pipeline, by name")

    def is_for(self, pipeline: str, source: str) -> bool:
        return pipeline == self.pipeline and any(
            fnmatch(f"/{source}", f"*/{pattern.removeprefix('/')}") for pattern in self.sources
        )
