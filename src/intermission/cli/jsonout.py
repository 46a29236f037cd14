"""How `--json` and `--jsonl` print documents: one versioned JSON object a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel

VERSION = 1


def emit(*documents: Mapping[str, Any] | BaseModel) -> None:
    """One line on standard output, there as soon as it is written; later fields win."""
    versioned: dict[str, Any] = {"v": VERSION}
    for document in documents:
        versioned |= document if isinstance(document, Mapping) else fields(document)
    text = json.dumps(versioned, ensure_ascii=False)
    if not text.isascii() and not _is_utf8(text):
        text = json.dumps(versioned)  # a file's name may be bytes that are no text
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def fields(document: BaseModel) -> dict[str, Any]:
    return document.model_dump(mode="python")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
