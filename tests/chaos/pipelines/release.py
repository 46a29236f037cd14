"""Which release of the pipelines this is. A host that was upgraded has another number here."""

from __future__ import annotations

RELEASE = 1
