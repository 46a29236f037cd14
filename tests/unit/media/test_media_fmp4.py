"""Segments: what is written is read back, joins are exact, and nothing else is taken for one."""

from __future__ import annotations

from fractions import Fraction
from io import BytesIO

import av
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intermission.media.fmp4 import (
    NotASegment,
    Sample,
    boxes,
    decoding_times,
    read_segment,
    segment,
)

ORDERS = st.lists(st.integers(0, 10_000), min_size=1, max_size=30, unique=True)


@given(shown=ORDERS, number=st.integers(0, 1000), tail=st.integers(1, 500))
def test_a_segment_is_read_back_as_it_was_written(shown: list[int], number: int, tail: int) -> None:
    shown = [at * 100 for at in shown]
    shown.insert(0, shown.pop(shown.index(min(shown))))
    samples = [Sample(bytes([n % 251]) * (n % 7 + 1), at, n == 0) for n, at in enumerate(shown)]
    end = max(shown) + tail
    found = read_segment(segment(number, samples, end))
    assert (found.number, found.start, found.end) == (number, min(shown), end)
    assert found.shown == tuple(shown)
    assert found.keys == (shown[0],)


@given(shown=ORDERS)
def test_nothing_is_decoded_after_it_is_shown(shown: list[int]) -> None:
    shown = [at * 100 for at in shown]
    shown.insert(0, shown.pop(shown.index(min(shown))))
    times = decoding_times(shown)
    assert times[0] == shown[0]
    assert times == sorted(set(times))
    assert all(decoded <= at for decoded, at in zip(times, shown, strict=True))


def test_frames_in_the_usual_order_are_decoded_evenly() -> None:
    """Two of them are decoded ahead, and share the first interval."""
    order = [0, 400, 200, 100, 300, 800, 600, 500, 700]
    assert decoding_times(order) == [0, 25, 50, 100, 200, 300, 400, 500, 600]


def test_a_first_sample_that_is_not_shown_first_is_refused() -> None:
    with pytest.raises(ValueError, match="first"):
        decoding_times([100, 0, 200])


def test_a_segment_has_the_brands_of_what_it_holds() -> None:
    """Brand msix promises an index of the segment (a sidx box)."""
    data = segment(0, [Sample(b"x", 0, is_key=True)], 100)
    found = [(name, data[at:end]) for name, (at, end) in boxes(data, 0, len(data))]
    assert [name for name, _ in found] == [b"styp", b"moof", b"mdat"]
    styp = found[0][1]
    brands = {styp[:4], *(styp[at : at + 4] for at in range(8, len(styp), 4))}
    assert brands == {b"msdh"}


def test_even_audio_takes_four_bytes_a_packet() -> None:
    packets = [Sample(b"x" * 10, n * 1024, is_key=True) for n in range(100)]
    data = segment(3, packets, 100 * 1024)
    found = read_segment(data)
    assert found.shown == tuple(range(0, 100 * 1024, 1024)) == found.keys
    assert len(data) - 1000 < 100 * 4 + 150


@pytest.mark.parametrize("cut", [0, 1, 7, 30, -1])
def test_half_a_segment_is_none(cut: int) -> None:
    data = segment(0, [Sample(b"abc", 0, is_key=True), Sample(b"de", 5, is_key=False)], 10)
    with pytest.raises(NotASegment):
        read_segment(data[:cut])


def test_libav_reads_the_times_that_were_written() -> None:
    """Frames decoded out of order, in two segments, behind a beginning that libav wrote."""
    header = BytesIO()
    out = av.open(header, "w", format="mp4", options={
        "movflags": "empty_moov+default_base_moof", "use_editlist": "0",
        "video_track_timescale": "1000"})  # fmt: skip
    stream = out.add_stream("mjpeg", rate=25)
    stream.width, stream.height, stream.pix_fmt = 16, 16, "yuvj420p"
    stream.codec_context.time_base = Fraction(1, 1000)
    out.start_encoding()
    frame = av.VideoFrame(16, 16, "yuvj420p")
    frame.pts, frame.time_base = 0, Fraction(1, 1000)
    (packet,) = [*stream.encode(frame), *stream.encode(None)]
    jpeg = bytes(packet)
    first = [Sample(jpeg, at, at == 0) for at in (0, 120, 40, 80)]
    second = [Sample(jpeg, at, at == 160) for at in (160, 275, 200)]
    data = header.getvalue() + segment(0, first, 160) + segment(1, second, 300)
    with av.open(BytesIO(data), "r") as container:
        packets = [one for one in container.demux(video=0) if one.pts is not None]
    assert [one.pts for one in packets] == [0, 120, 40, 80, 160, 275, 200]
    dts = [one.dts or 0 for one in packets]
    assert dts == sorted(dts)
