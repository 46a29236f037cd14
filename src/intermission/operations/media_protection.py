"""Telling in a worker's log which protections from untrusted media its machine lacks."""

from __future__ import annotations

import importlib.util
import logging

from intermission.media.sandbox import UNPROTECTED_REMEDY, lacking, missing_controls
from intermission.settings import Settings

log = logging.getLogger(__name__)


def log_missing(settings: Settings) -> None:
    """Once for a worker. Where media cannot be read at all, there is nothing to say."""
    if importlib.util.find_spec("av") is None:
        return
    if missing := missing_controls():
        refused = settings.media_sandbox == "require"
        then = "media is not read here" if refused else "media is read with fewer protections"
        log.warning("%s: %s. %s", lacking(missing), then, UNPROTECTED_REMEDY)
