"""How the child says no: a phrase that completes a sentence beginning with the file's name.

The child never learns that name. The caller puts it in front and raises a `MediaError`.
"""

from __future__ import annotations

AGAIN = "Copy or download it again from where it came from."
EXPORT = "Convert it to MP4, WAV or another common format first."
RAISE_LIMIT = "If it is to be trusted, raise that limit (media_ settings)."


class Refused(Exception):
    """The file cannot be used. `found` says why, as in "ends after 3 of 60 s"."""

    def __init__(self, found: str, remedy: str) -> None:
        super().__init__(found)
        self.found = found
        self.remedy = remedy
