"""Files made to mislead, and files that are merely broken: every one ends in a sentence.

One child reads each file, as in real use. Nothing but the file itself is ever opened, nothing
hangs, nothing is left running, and what is damaged is not reported as done.
"""

from __future__ import annotations

import ctypes
import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from intermission.errors import IntermissionError, MediaError
from intermission.media import Limits, extract_audio, probe
from intermission.media.child_client import ChildClient
from intermission.media.request import Request
from intermission.media.sniff import Kind
from media_samples import claiming, encrypted, make

MUTATIONS = 200
CAP_S = 20.0
CUT = 2
"""The kind of mutation that only takes the end away."""
CLAIMING = {0, 1, 2, 4, 6, 7}
"""The samples whose header tells how long they are; of the others nobody can say."""
IN_OPEN, IN_ACCESS = 0x20, 0x01

Opened = Callable[[], bool]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret.wav"
    return make(path, video=None, audio="pcm_s16le", seconds=1)


@pytest.fixture
def was_opened(secret: Path) -> Iterator[Opened]:
    """Whether anybody has opened or read the secret since, as the kernel saw it."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_NONBLOCK)
    assert libc.inotify_add_watch(fd, os.fsencode(secret), IN_OPEN | IN_ACCESS) >= 0

    def seen() -> bool:
        try:
            return bool(os.read(fd, 4096))
        except BlockingIOError:
            return False

    yield seen
    os.close(fd)


@pytest.fixture(scope="module")
def film(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Three seconds of picture and sound, with the index at the end."""
    return make(tmp_path_factory.mktemp("film") / "film.mp4", seconds=3).read_bytes()


def refusal(path: Path, data: bytes) -> str:
    """What is said of these bytes; both ways to ask must refuse them for good."""
    path.write_bytes(data)
    with pytest.raises(MediaError) as caught:
        extract_audio(path, path.with_suffix(".out.wav"))
    assert not caught.value.retryable
    assert not path.with_suffix(".out.wav").exists()
    return str(caught.value)


PLAYLISTS = {
    "an HLS playlist": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{}\n#EXT-X-ENDLIST\n",
    "a concat script": "ffconcat version 1.0\nfile '{}'\n",
}


def test_the_watch_on_the_secret_works(secret: Path, was_opened: Opened) -> None:
    assert not was_opened()
    secret.read_bytes()
    assert was_opened()


@pytest.mark.parametrize("found", PLAYLISTS)
def test_a_list_of_files_named_mp4_opens_none_of_them(
    found: str, secret: Path, was_opened: Opened, tmp_path: Path
) -> None:
    text = PLAYLISTS[found].format(secret)
    assert f"talk.mp4 is not media: it is {found}." in refusal(tmp_path / "talk.mp4", text.encode())
    with pytest.raises(MediaError, match=found):
        probe(tmp_path / "talk.mp4")
    assert not was_opened()


@pytest.mark.parametrize(("found", "demuxer"), [*zip(PLAYLISTS, ("hls", "concat"), strict=True)])
def test_even_a_fooled_child_reaches_no_other_file(
    found: str, demuxer: str, secret: Path, was_opened: Opened, tmp_path: Path
) -> None:
    path = tmp_path / "talk.mp4"
    path.write_text(PLAYLISTS[found].format(secret))
    with path.open("rb") as file:
        kind = Kind(demuxer, "a list")
        order = Request("probe", os.getpid(), file.fileno(), kind, Limits())
        with ChildClient(order, path.name) as child:
            assert "landlock" in child.listen(time.monotonic() + CAP_S)["locked_in"]
            with pytest.raises(MediaError, match="begins like a list, but"):
                child.listen(time.monotonic() + CAP_S)
    assert not was_opened()


BROKEN = {
    "zero bytes": (b"", "talk.mp4 is not media: it is empty, zero bytes long."),
    "a text": (b"Dear all,\nthe talk is cancelled.\n", "talk.mp4 is not media: it is a text."),
    "a web page": (b"<!doctype html><title>404</title>", "it is a web page."),
    "zeros": (bytes(100_000), "it is a run of zero bytes"),
    "noise": (random.Random(5).randbytes(10_000), "it is of no known kind"),
    "a header alone": (b"\x1a\x45\xdf\xa3" + bytes(500), "begins like Matroska or WebM, but"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_media_is_named(name: str, tmp_path: Path) -> None:
    data, sentence = BROKEN[name]
    assert sentence in refusal(tmp_path / "talk.mp4", data)


def test_a_recording_cut_before_its_index(film: bytes, tmp_path: Path) -> None:
    said = refusal(tmp_path / "talk.mp4", film[: film.rindex(b"moov") - 4])
    assert "talk.mp4 has no index (no moov box): the recording or the copy stopped" in said


def test_a_download_cut_in_half(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole.mp4", seconds=3, options={"movflags": "faststart"}).read_bytes()
    said = refusal(tmp_path / "talk.mp4", whole[: len(whole) // 2])
    assert "talk.mp4 ends after 1." in said
    assert "of 3.0 s." in said


def test_an_encrypted_film(film: bytes, tmp_path: Path) -> None:
    assert "talk.mp4 is encrypted (DRM)." in refusal(tmp_path / "talk.mp4", encrypted(film))


@pytest.mark.parametrize("name", ["talk.mp4", "talk.mkv"])
def test_a_small_file_that_claims_a_day(name: str, tmp_path: Path) -> None:
    data = make(tmp_path / f"whole-{name}", seconds=3).read_bytes()
    said = refusal(tmp_path / name, claiming(data, 25 * 3600))
    assert f"{name} claims 25 h, more than the limit of 24 h." in said
    said = refusal(tmp_path / name, claiming(data, 23 * 3600))
    assert f"{name} claims 23 h but holds only {len(data)} bytes." in said


def test_a_file_that_claims_a_minute_and_has_three_seconds(tmp_path: Path) -> None:
    data = make(tmp_path / "whole.mkv", seconds=3).read_bytes()
    said = refusal(tmp_path / "talk.mkv", claiming(data, 60))
    assert "talk.mkv ends after 3.0 of 60.0 s." in said


def test_a_sample_rate_of_one_makes_no_hours(tmp_path: Path) -> None:
    path = make(tmp_path / "a.wav", video=None, audio="pcm_s16le", seconds=1, rate_hz=16_000)
    data = bytearray(path.read_bytes())
    data[24:32] = struct.pack("<II", 1, 2)
    said = refusal(tmp_path / "talk.wav", bytes(data))
    assert "talk.wav" in said


def test_mutated_files_end_in_a_result_or_a_sentence(tmp_path: Path) -> None:
    """Two at a time, as two slots would; a seed names each mutation."""
    samples = [sample.read_bytes() for sample in _samples(tmp_path)]
    before = _children()

    def read(seed: int) -> str:
        path = tmp_path / f"mutant-{seed}"
        path.write_bytes(mutated(samples, seed))
        is_cut = seed // len(samples) % 4 == CUT and seed % len(samples) in CLAIMING
        return ending(path, whole_ms=1000 if is_cut else 0)

    with ThreadPoolExecutor(2) as pool:
        endings = list(pool.map(read, range(MUTATIONS)))
    bad = {seed: end for seed, end in enumerate(endings) if end not in ("done", "refused")}
    assert not bad
    assert endings.count("done") > 20, "some damage is survivable"
    assert endings.count("refused") > 20, "and some is not"
    assert _children() <= before, "no zombie is left"


def _samples(folder: Path) -> list[Path]:
    return [
        make(folder / "a.mp4", seconds=1),
        make(folder / "f.mp4", seconds=1, options={"movflags": "faststart"}),
        make(folder / "a.mkv", seconds=1, audio="libopus", rate_hz=48_000),
        make(folder / "a.ts", seconds=1),
        make(folder / "a.avi", seconds=1, video="mpeg4", audio="ac3", rate_hz=48_000),
        make(folder / "a.mp3", video=None, audio="libmp3lame", seconds=1),
        make(folder / "a.wav", video=None, audio="pcm_s16le", seconds=1),
        make(folder / "a.flac", video=None, audio="flac", seconds=1),
        make(folder / "a.ogg", video=None, audio="libopus", seconds=1, rate_hz=48_000),
    ]


def mutated(samples: list[bytes], seed: int) -> bytes:
    """One of the samples, flipped, cut, or with a piece of another over its head or middle."""
    rng = random.Random(seed)
    data = bytearray(samples[seed % len(samples)])
    how = seed // len(samples) % 4
    if how == 0:  # flips anywhere
        for _ in range(rng.randrange(1, 400)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif how == 1:  # flips where the headers are
        for _ in range(rng.randrange(1, 40)):
            at = rng.randrange(min(600, len(data)))
            data[at if rng.random() < 0.5 else -at - 1] = rng.randrange(256)
    elif how == CUT:
        del data[rng.randrange(len(data)) :]
    else:
        other = rng.choice(samples)
        start, length = rng.randrange(len(other)), rng.randrange(1, 2000)
        at = 0 if rng.random() < 0.5 else rng.randrange(len(data))
        data[at : at + length] = other[start : start + length]
    return bytes(data)


def ending(path: Path, whole_ms: int) -> str:
    """How reading a file ends, and whether a result can be true."""
    limits = replace(Limits(), wall_s=CAP_S)
    out = path.with_suffix(".wav")
    started = time.monotonic()
    try:
        done = extract_audio(path, out, limits=limits)
    except MediaError as e:
        if "broke the decoder" in str(e):
            return str(e)
        if "wall time" in str(e) or time.monotonic() - started > CAP_S:
            return f"too slow: {e}"
        return "refused" if e.remedy and not out.exists() else f"no remedy or a rest: {e}"
    except IntermissionError as e:
        return f"{type(e).__name__}: {e}"
    if out.stat().st_size != 44 + done.samples * 2:
        return "the file is not what was reported"
    if done.duration_ms < 0.7 * whole_ms:
        return f"a file cut to {done.duration_ms} ms passed for whole"
    return "done" if done.duration_ms < 90_000 else f"a second became {done.duration_ms} ms"


def _children() -> set[str]:
    listing = Path("/proc/self/task").glob("*/children")
    return {pid for children in listing for pid in children.read_text().split()}


def test_a_decoder_crash_is_not_the_callers(film: bytes, tmp_path: Path) -> None:
    """A caller whose child is shot in mid-work lives on and can ask again."""
    path = tmp_path / "talk.mp4"
    path.write_bytes(film)
    code = (
        "import os, signal, sys\n"
        "from intermission.errors import MediaError\n"
        "from intermission.media import frames, probe\n"
        "pictures = frames(sys.argv[1], [0] * 10_000); next(pictures)\n"
        "child = int(open(f'/proc/self/task/{os.getpid()}/children').read())\n"
        "os.kill(child, signal.SIGSEGV)\n"
        "try: list(pictures)\n"
        "except MediaError as e: print(e.message)\n"
        "print(probe(sys.argv[1]).duration_ms)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=180
    )
    assert done.stdout.splitlines()[0] == "talk.mp4 crashed the decoder (SIGSEGV)."
    assert 2900 < int(done.stdout.splitlines()[1]) < 3100
    assert not done.stderr
