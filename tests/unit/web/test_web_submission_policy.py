"""Which files of the server its clients may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from intermission.composition.uploads import Uploads
from intermission.pipeline.catalog import Catalog
from intermission.settings import Settings
from intermission.web.api.submission_policy import Admission
from intermission.web.problems import Problem


@pytest.fixture
def admission(tmp_path: Path) -> Admission:
    uploads = Uploads(Settings(store=str(tmp_path / "store")))
    return Admission(uploads, Catalog(), roots=[tmp_path / "open"])


@pytest.mark.parametrize(
    "value",
    ["/etc/secret.vtt", "~/words.vtt", "words.vtt", "../words.vtt", "/srv/model", "~root/x"],
)
def test_a_parameter_names_no_file_that_is_not_offered(admission: Admission, value: str) -> None:
    with pytest.raises(Problem) as caught:
        admission.params({"subtitles": value})
    assert caught.value.status == 403


def test_other_parameters_are_as_they_were(admission: Admission, tmp_path: Path) -> None:
    params = {
        "subtitles": str(tmp_path / "open" / "words.vtt"),
        "model": "tiny.en",
        "text": "WEBVTT\n\n00:00.000 --> 00:01.000\nHello\n",
        "chunk_seconds": 60,
    }
    assert admission.params(params) == params
