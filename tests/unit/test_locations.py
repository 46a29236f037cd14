"""What a person means by a path or a URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from intermission.composition.locations import ObjectLocation, as_location, uri_of
from intermission.errors import UsageError


@pytest.mark.parametrize("name", ["a b.mp4", "50%.mp4", "vidéo.mp4", "a#b?.mp4"])
def test_a_file_url_names_the_file_it_was_made_from(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert as_location(path.as_uri()) == path
    assert as_location(f"file://localhost{path.as_uri().removeprefix('file://')}") == path
    assert uri_of(as_location(path.as_uri())) == path.as_uri()


def test_a_file_of_another_machine_is_refused() -> None:
    with pytest.raises(UsageError, match="another machine"):
        as_location("file://nas/talks/a.mp4")


def test_a_key_of_a_bucket_is_taken_as_it_is_typed() -> None:
    assert as_location("s3://talks/a%20b.mp4") == ObjectLocation("s3://talks", "a%20b.mp4")
