"""`intermission run transcode`: what is there before the end, and after the second time."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from io import BytesIO
from pathlib import Path

import av
import pytest
from av.container import InputContainer
from command_line import Cli, until

import media_samples
from intermission.backends.store.objects import ObjectStore
from intermission.media.fmp4 import boxes
from servers.seaweed import S3Server
from transcoding import REF

LADDER = ("--ladder", "90p,60p", "--segment-seconds", "1", "--chunk-seconds", "2")
TALLER = ("--ladder", "120p,90p,60p", "--segment-seconds", "1", "--chunk-seconds", "2")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("video") / "video.mp4"
    return media_samples.make(path, seconds=6, size=(160, 120))


@pytest.fixture
def video(cli: Cli, made: Path) -> Path:
    cli.env |= {"BEGUN": str(cli.folder / "begun")}
    path = cli.folder / "video.mp4"
    path.write_bytes(made.read_bytes())
    return path


def begun(cli: Cli) -> Counter[str]:
    """The sections and heights whose encoding began since the last look."""
    path = cli.folder / "begun"
    found = Counter(path.read_text().splitlines()) if path.exists() else Counter[str]()
    path.unlink(missing_ok=True)
    return found


def videos(cli: Cli) -> Path:
    return cli.folder / "videos" / "video"


def told(playlist: Path) -> list[str]:
    """The files that a playlist leads to."""
    text = playlist.read_text()
    return [*re.findall(r'URI="([^"]+)"', text), *re.findall(r"^[^#\n]+$", text, re.MULTILINE)]


def plays(master: Path) -> int:
    """How many files are behind a playlist; each of them is there."""
    count = 0
    for name in told(master):
        playlist = master.parent / name
        assert "#EXT-X-ENDLIST" in playlist.read_text()
        for part in told(playlist):
            assert (playlist.parent / part).stat().st_size > 0
            count += 1
    return count


def renditions(cli: Cli, job: str) -> dict[str, tuple[str, int, int]]:
    groups = cli("status", job, "--json").json["groups"]
    assert {(group["by"], group["unit"]) for group in groups} <= {("rendition", "segments")}
    return {group["name"]: (group["state"], group["done"], group["total"]) for group in groups}


def test_a_video_becomes_a_ladder(cli: Cli, video: Path) -> None:
    ended = cli("run", REF, video, "--ladder", "720p,90p,60p", *LADDER[2:])
    assert ended.out.split() == ["videos/video/manifest.mpd", "videos/video/master.m3u8"]
    assert plays(videos(cli) / "master.m3u8") == 3 * (6 + 1)
    assert {path.name for path in (videos(cli) / "90p").iterdir()} == {
        "index.m3u8",
        "init.mp4",
        *(f"seg_{n:05d}.m4s" for n in range(6)),
    }
    assert renditions(cli, "video.mp4") == {
        "60p": ("completed", 6, 6),
        "90p": ("completed", 6, 6),
        "720p": ("skipped", 0, 0),
    }
    shown = cli("status", "video.mp4").out
    assert re.search(r"^RENDITION +STATE +SEGMENTS$", shown, re.MULTILINE)
    assert re.search(r"^720p +skipped +0/0 +the source has only 120 lines$", shown, re.MULTILINE)
    assert begun(cli) == {f"{n} {height}": 1 for n in (0, 2, 4) for height in (90, 60)}


def decoded(path: Path) -> tuple[list[tuple[int, int]], float]:
    """The size of every frame in a file, and how many seconds of audio it has."""
    with av.open(str(path)) as container:
        sizes = [(frame.width, frame.height) for frame in container.decode(video=0)]
    with av.open(str(path)) as container:
        if not container.streams.audio:
            return sizes, 0.0
        return sizes, sum(frame.samples / frame.sample_rate for frame in container.decode(audio=0))


def test_frames_to_find_a_moment_by_and_one_file_of_all(cli: Cli, video: Path) -> None:
    cli("run", REF, video, *LADDER, "--mp4", "90p")
    sizes, audio_s = decoded(videos(cli) / "90p.mp4")
    assert sizes == [(120, 90)] * 6 * media_samples.FPS
    assert abs(audio_s - 6) < 0.05
    assert decoded(videos(cli) / "poster.jpg")[0] == [(120, 90)]
    cues = (videos(cli) / "storyboard.vtt").read_text().split("\n\n")
    assert cues[0] == "WEBVTT"
    assert cues[6].split() == [
        "00:00:05.000",
        "-->",
        "00:00:06.000",
        "storyboard/sheet_000.jpg#xywh=0,120,160,120",
    ]
    sheet = videos(cli) / "storyboard" / "sheet_000.jpg"
    with av.open(str(sheet)) as container:
        (frame,) = container.decode(video=0)
    assert (frame.width, frame.height) == (5 * 160, 2 * 120)
    grey = memoryview(frame.planes[0])
    for n in range(6):  # the brightness of a frame is its number
        at = (n // 5 * 120 + 60) * frame.planes[0].line_size + n % 5 * 160 + 80
        level = (n * media_samples.FPS * 4 % 256 - 16) * 255 / 219
        assert abs(grey[at] - min(max(level, 0), 255)) < 12, f"frame {n}"


def test_one_file_of_all_plays_while_it_is_loaded(cli: Cli, video: Path) -> None:
    """Its index comes first, names every sample, and no fragments follow."""
    cli("run", REF, video, *LADDER, "--mp4", "90p")
    path = videos(cli) / "90p.mp4"
    data = path.read_bytes()
    found = dict(boxes(data, 0, len(data)))
    assert list(found) == [b"ftyp", b"moov", b"mdat"]
    assert b"mvex" not in dict(boxes(data, *found[b"moov"]))
    whole = b"".join(
        (videos(cli) / "90p" / name).read_bytes() for name in told(videos(cli) / "90p/index.m3u8")
    )
    with av.open(str(path)) as one, av.open(BytesIO(whole), "r") as segments:
        assert one.duration == pytest.approx(6_000_000, abs=22_000)
        assert one.streams.video[0].frames == 6 * media_samples.FPS
        assert packets(one) == packets(segments)
        one.seek(4_000_000)
        assert next(one.decode(video=0)).time == pytest.approx(4)


def packets(container: InputContainer) -> list[tuple[bytes, Fraction, Fraction, bool]]:
    """The frames of a file as they are stored, and when each is decoded and shown."""
    return [
        (bytes(one), one.dts * one.time_base, one.pts * one.time_base, one.is_keyframe)
        for one in container.demux(video=0)
        if one.dts is not None and one.pts is not None and one.time_base is not None
    ]


def test_there_is_no_file_of_a_rendition_that_is_not_there(cli: Cli, video: Path) -> None:
    ended = cli("run", REF, video, *LADDER, "--mp4", "720p", code=1)
    assert 'no rendition "720p". Choose one with --mp4: 90p, 60p' in ended.err


def test_one_more_rendition_costs_that_rendition_alone(cli: Cli, video: Path) -> None:
    """And what is there plays until the new is complete, and is collected after a grace."""
    cli("run", REF, video, *LADDER)
    begun(cli)
    before = (videos(cli) / "master.m3u8").read_bytes()
    cli.env["GATES"] = str(cli.folder)
    process = cli.start("run", REF, video, *TALLER, "--jsonl")
    until(lambda: (cli.folder / "begun").exists())
    assert (videos(cli) / "master.m3u8").read_bytes() == before
    assert plays(videos(cli) / "master.m3u8") == 3 * 7
    for n in (0, 2, 4):
        (cli.folder / str(n)).touch()
    events = cli.end(process).events
    assert begun(cli) == {f"{n} 120": 1 for n in (0, 2, 4)}
    states = [one["state"] for one in events if one["event"] == "group" and one["name"] == "120p"]
    assert (states[0], states[-1]) == ("in_progress", "completed")
    job = events[0]["job"]
    assert told(videos(cli) / "master.m3u8") == [
        f"{job[:10]}/{name}/index.m3u8" for name in ("audio/0", "120p", "90p", "60p")
    ]
    assert plays(videos(cli) / "master.m3u8") == plays(videos(cli) / job[:10] / "master.m3u8")

    cli("gc", ".", "--grace-s", "60")
    assert (videos(cli) / "90p" / "seg_00000.m4s").exists()
    cli("run", REF, video, *LADDER)  # and back again, without any work
    assert (videos(cli) / "master.m3u8").read_bytes() == before
    assert not begun(cli)


def test_a_failed_version_leaves_the_old_one_in_front(cli: Cli, video: Path) -> None:
    cli("run", REF, video, *LADDER)
    before = (videos(cli) / "master.m3u8").read_bytes()
    ended = cli("run", REF, video, *TALLER, "--crf", "30", code=1, env={"BROKEN": "120"})
    assert "120p could not be encoded" in ended.err
    assert ended.out == ""
    assert (videos(cli) / "master.m3u8").read_bytes() == before
    assert plays(videos(cli) / "master.m3u8") == 3 * 7
    (job,) = [row["job"] for row in cli("ls", "--json").json["jobs"] if row["state"] == "failed"]
    assert renditions(cli, job[:10]) == {
        "60p": ("completed", 6, 6),
        "90p": ("completed", 6, 6),
        "120p": ("failed", 0, 6),
    }
    assert plays(videos(cli) / job[:10] / "master.m3u8") == 3 * 7  # what could be encoded
    begun(cli)
    cli("run", REF, video, *TALLER, "--crf", "30")
    assert begun(cli) == {f"{n} 120": 1 for n in (0, 2, 4)}
    assert told(videos(cli) / "master.m3u8")[0] == f"{job[:10]}/audio/0/index.m3u8"


def test_a_rendition_that_is_not_required_may_fail(cli: Cli, video: Path) -> None:
    args = ("run", REF, video, *LADDER, "--required", "60p")
    cli(*args, env={"BROKEN": "90"})
    assert told(videos(cli) / "master.m3u8") == ["audio/0/index.m3u8", "60p/index.m3u8"]
    assert renditions(cli, "video.mp4")["90p"] == ("failed", 0, 6)


def follow(playlist: Path) -> Iterator[int]:
    """How many segments a growing playlist has, whenever it is looked at; only its end changes."""
    seen = ""
    while True:
        text = playlist.read_text() if playlist.exists() else ""
        assert text.startswith(seen), f"{playlist.name} was\n{seen}\nand is\n{text}"
        assert not text or "#EXT-X-PLAYLIST-TYPE:EVENT\n" in text
        seen = text
        yield text.count("#EXTINF")


def grows_to(lengths: Iterator[int], wanted: int) -> None:
    until(lambda: next(lengths) >= wanted)


def test_what_is_encoded_can_be_played_at_once(cli: Cli, video: Path) -> None:
    """It grows in order, survives a crash, and becomes a video like any other."""
    cli.env["GATES"] = str(cli.folder)
    lengths = follow(videos(cli) / "90p" / "index.m3u8")
    (cli.folder / "0").touch()
    first = cli.start("run", REF, video, *LADDER, start_new_session=True)
    grows_to(lengths, 2)
    master = videos(cli) / "master.m3u8"
    until(lambda: master.exists() and len(told(master)) == 3)
    assert set(told(master)) == {"audio/0/index.m3u8", "90p/index.m3u8", "60p/index.m3u8"}
    assert "BANDWIDTH=" in (videos(cli) / "master.m3u8").read_text()
    for part in told(videos(cli) / "90p" / "index.m3u8"):
        assert (videos(cli) / "90p" / part).stat().st_size > 0
    os.killpg(first.pid, signal.SIGKILL)
    cli.end(first)
    (cli.folder / "4").touch()  # the last before the one in the middle
    second = cli.start("run", REF, video, *LADDER)
    until(lambda: "4 90" in begun_so_far(cli))
    assert next(lengths) == 2
    (cli.folder / "2").touch()
    assert cli.end(second).code == 0
    assert next(lengths) == 6
    assert plays(videos(cli) / "master.m3u8") == 3 * 7


def begun_so_far(cli: Cli) -> str:
    return (cli.folder / "begun").read_text()


def test_a_playlist_never_shrinks_under_two_workers(cli: Cli, video: Path) -> None:
    cli.env |= {
        "GATES": str(cli.folder),
        "INTERMISSION_LEDGER": str(cli.folder / "shared.sqlite"),
        "INTERMISSION_SLOTS": "1",
    }
    cli("submit", REF, video, *LADDER)
    workers = [cli.start("worker", "--pipeline", REF) for _ in range(2)]
    lengths = follow(videos(cli) / "60p" / "index.m3u8")
    for n in (0, 2):
        (cli.folder / str(n)).touch()
        grows_to(lengths, n + 2)
    (cli.folder / "4").touch()
    until(lambda: next(lengths) == 6 and is_done(cli))
    for worker in workers:
        stop(cli, worker)
    next(lengths)
    assert plays(videos(cli) / "master.m3u8") == 3 * 7


def is_done(cli: Cli) -> bool:
    return [row["state"] for row in cli("ls", "--json").json["jobs"]] == ["done"]


def stop(cli: Cli, worker: subprocess.Popen[str]) -> None:
    worker.send_signal(signal.SIGTERM)
    assert cli.end(worker).code == 0


def test_again_in_another_way_in_a_bucket(cli: Cli, video: Path, s3: S3Server) -> None:
    bucket = f"s3://again-{os.urandom(4).hex()}"
    cli.env |= s3.environment | {"XDG_CACHE_HOME": str(cli.folder / "cache")}
    store = ObjectStore(bucket, options=s3.options)
    store.create("video.mp4", video)
    source = f"{bucket}/video.mp4"
    printed = cli("run", REF, source, *LADDER).out.split()
    assert printed == [f"{bucket}/videos/video/{name}" for name in ("manifest.mpd", "master.m3u8")]
    before = store.read("videos/video/master.m3u8")
    begun(cli)
    cli("run", REF, source, *TALLER, code=1, env={"BROKEN": "120"})
    assert store.read("videos/video/master.m3u8") == before
    begun(cli)
    again = cli("run", REF, source, *TALLER, "--json").json
    assert begun(cli) == {f"{n} 120": 1 for n in (0, 2, 4)}
    folder = again["sources"][0]["job"][:10]
    text = store.read("videos/video/master.m3u8").decode()
    for name in ("audio/0", "120p", "90p", "60p"):
        assert f"{folder}/{name}/index.m3u8" in text
        playlist = store.read(f"videos/video/{folder}/{name}/index.m3u8").decode()
        assert playlist.count("#EXTINF") == 6
        assert "ENDLIST" in playlist


def test_a_broken_preview_fails_no_job(cli: Cli, video: Path) -> None:
    module = cli.folder / "broken.py"
    module.write_text(
        "from intermission.pipelines.transcode import transcode\n"
        "transcode.preview = lambda **_: 1 / 0\n"
    )
    ended = cli("run", f"{module}:transcode", video, *LADDER)
    assert "the preview of transcode is broken" in ended.err
    assert plays(videos(cli) / "master.m3u8") == 3 * 7


def test_events_of_groups_are_documents_too(cli: Cli, video: Path) -> None:
    cli("run", REF, video, *LADDER)
    lines = cli("watch", "video.mp4", "--jsonl", "--after", "0").out.splitlines()
    groups = [one for one in map(json.loads, lines) if one["event"] == "group"]
    assert {(one["name"], one["state"]) for one in groups} == {
        ("90p", "completed"),
        ("60p", "completed"),
    }
