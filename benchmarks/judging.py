"""What a figure must satisfy before it counts."""

from __future__ import annotations


def require(condition: bool, found: str) -> None:
    """Refuse a measurement that did not do what it says; a fast wrong answer is worth nothing."""
    if not condition:
        raise RuntimeError(f"this measurement does not count: {found}")
