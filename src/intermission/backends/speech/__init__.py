"""Speech engines by name: the ones that ship, and those that other packages register."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from intermission.errors import ParameterError
from intermission.ports.speech import SpeechEngine

GROUP = "intermission.speech"
_SHIPPED = {
    "faster-whisper": "intermission.backends.speech.whisper:WhisperEngine",
    "http": "intermission.backends.speech.http:HttpEngine",
}


def engine(name: str) -> SpeechEngine:
    """The engine of this name, with or without a version after `@`."""
    name = name.partition("@")[0]
    if name in _SHIPPED:
        module, _, attribute = _SHIPPED[name].partition(":")
        return getattr(import_module(module), attribute)()
    for entry in entry_points(group=GROUP, name=name):
        return entry.load()()
    known = sorted({*_SHIPPED, *(entry.name for entry in entry_points(group=GROUP))})
    raise ParameterError(
        f"there is no speech engine {name!r}.", remedy=f"There are: {', '.join(known)}."
    )
