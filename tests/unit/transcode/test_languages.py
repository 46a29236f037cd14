"""Language tags of players: BCP 47, or none."""

from __future__ import annotations

import pytest

from intermission.pipelines.transcode.languages import tag_of


@pytest.mark.parametrize(
    ("found", "tag"),
    [
        ("de", "de"),
        ("deu", "de"),
        ("ger", "de"),
        ("GER", "de"),
        ("eng", "en"),
        ("fre", "fr"),
        ("chi", "zh"),
        ("iw", "he"),
        ("gsw", "gsw"),
        ("zh-hant-tw", "zh-Hant-TW"),
        ("zho-Hant", "zh-Hant"),
        ("es-419", "es-419"),
        ("de-ch-1996", "de-CH-1996"),
    ],
)
def test_every_way_to_name_a_language_becomes_one(found: str, tag: str) -> None:
    assert tag_of(found) == tag
    assert tag_of(tag) == tag


@pytest.mark.parametrize(
    "found",
    [None, "", "und", "xx", "auto", "german", "d", "de-", "de_DE", "de de", "1de", "de-TOOLONGTAG",
     'de"', "de\n", "de\n#EXT-X-ENDLIST", "<de>", "de&amp;", "d\u0435"],
)  # fmt: skip
def test_anything_else_is_no_language(found: str | None) -> None:
    assert tag_of(found) == ""
