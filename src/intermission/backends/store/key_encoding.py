"""How a key is spelled as the name of an object: as itself, but for control characters.

Object services list names as XML, which cannot hold most control characters, and the client
refuses them all. They are written `%0A`; a `%` that would be read as such an escape is written
`%25`. Every other name means itself, so that objects nobody here wrote keep theirs.
"""

from __future__ import annotations

import re

_ESCAPE = r"[01][0-9A-F]|7F"
_MISREAD = re.compile(rf"%(?=(?:25)*(?:{_ESCAPE}))")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_WRITTEN = re.compile(rf"%(?:25(?=(?:25)*(?:{_ESCAPE}))|({_ESCAPE}))")


def name_of(key: str) -> str:
    """The object name of a key; `key_of` undoes it."""
    return _CONTROL.sub(lambda found: f"%{ord(found[0]):02X}", _MISREAD.sub("%25", key))


def key_of(name: str) -> str:
    """The key whose object has this name."""
    return _WRITTEN.sub(lambda found: chr(int(found[1], 16)) if found[1] else "%", name)
