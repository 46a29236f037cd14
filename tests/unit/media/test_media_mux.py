"""One file of many segments: its index leads to every sample, however large the file is."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from intermission.media.fmp4 import SampleRow, boxes, sample_rows
from intermission.media.mux import MuxTrack, header
from video_samples import transcoded, video

TABLES = (b"moov", b"trak", b"mdia", b"minf", b"stbl")


@pytest.mark.parametrize(
    ("sample_bytes", "name", "form"), [(1000, b"stco", "I"), (1 << 30, b"co64", "Q")]
)
def test_offsets_lead_to_the_data_of_each_segment(
    sample_bytes: int, name: bytes, form: str, tmp_path: Path
) -> None:
    played = transcoded(video(tmp_path / "a.mp4")).renditions[0]
    rows = [[SampleRow(100, sample_bytes, True, 0)] * count for count in (1, 2, 2, 1)]
    data = header([MuxTrack(played.init[0], rows)], [(0, n) for n in range(4)])
    at, end = 0, len(data) - (16 if name == b"co64" else 8)
    for table in TABLES:
        at, end = dict(boxes(data, at, end))[table]
    found = dict(boxes(data, at, end))
    first = len(data)
    assert struct.unpack_from(f">4xI4{form}", data, found[name][0]) == (
        4,
        *(first + n * sample_bytes for n in (0, 1, 3, 5)),
    )
    assert struct.unpack_from(">4xI9I", data, found[b"stsc"][0]) == (3, 1, 1, 1, 2, 2, 1, 4, 1, 1)


def test_samples_are_listed_as_their_segment_has_them(tmp_path: Path) -> None:
    played = transcoded(video(tmp_path / "a.mp4")).renditions[0]
    for data, segment in zip(played.data, played.segments, strict=True):
        at, shown = segment.start, []
        for row in sample_rows(data):
            shown.append(at + row.shift)
            at += row.length
        assert (tuple(shown), at) == (segment.shown, segment.end)
