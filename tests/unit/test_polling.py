"""Waiting for descriptors of any number."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator
from contextlib import closing

import pytest

from intermission.polling import readable

ABOVE = 1100
"""A descriptor that `select()` refuses."""


@pytest.fixture
def high_pipe() -> Iterator[tuple[int, int]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard <= ABOVE:
        pytest.skip(f"only {hard} descriptors are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, ABOVE + 10), hard))
    low, write = os.pipe()
    read = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, ABOVE)
    os.close(low)
    try:
        yield read, write
    finally:
        os.close(read)
        os.close(write)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_descriptor_may_have_any_number(high_pipe: tuple[int, int]) -> None:
    read, write = high_pipe
    assert read >= ABOVE
    assert readable([read], 0) == []
    os.write(write, b"x")
    assert readable([read]) == [read]


def test_an_end_is_readable() -> None:
    read, write = os.pipe()
    with closing(os.fdopen(read, "rb", buffering=0)) as file:
        os.close(write)
        assert readable([file], 0) == [file]
