"""What `run transcode` costs over the best single ffmpeg command for the same ladder.

    python benchmarks/transcode.py [--rounds N] [--minutes M] [--chunk-seconds S] [--quick]

The contestants take turns, each in a fresh folder; a ratio compares two measurements of the same
round. CPU seconds are those of all processes a contestant started. Sizes, SSIM and what a rendition
costs that is added later are looked at in the first round: they do not change.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import plain_ffmpeg as plain
from plain_ffmpeg import CORES, RenditionSize

import samples

LADDER = (
    RenditionSize(1080, 5000),
    RenditionSize(720, 2500),
    RenditionSize(480, 1000),
    RenditionSize(360, 600),
)
SMALL = (RenditionSize(180, 200), RenditionSize(90, 100))
PIPELINE = "intermission.pipelines.transcode:transcode"
SINGLE, RUN, KILLED = "one ffmpeg", "run", "run, killed half way and again"
EACH, SCRIPT = "an ffmpeg per rendition", "a script of chunks"
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Work:
    """What every contestant is asked for."""

    video: Path
    seconds: float
    renditions: tuple[RenditionSize, ...]
    section_s: int


@dataclass(frozen=True)
class Cost:
    wall_s: float
    cpu_s: float


class TooLate(RuntimeError):
    """What was to be killed had ended."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--chunk-seconds", type=int, help="a section; 60, or what makes eight")
    parser.add_argument("--quick", action="store_true", help="a few small frames, one round")
    parser.add_argument("--folder", type=Path, help="the disk to work on")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    _adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.folder) as folder:
        work = prepared(Path(folder), options.minutes, options.chunk_seconds, options.quick)
        rounds = 1 if options.quick else options.rounds
        found = contest(work, Path(folder), rounds)
    print(json.dumps(found, indent=2) if options.json else tables(found, work))


def prepared(folder: Path, minutes: float, section_s: int | None, quick: bool) -> Work:
    """The video. A short one has short sections, so that there are about as many as in a long."""
    renditions = SMALL if quick else LADDER
    seconds = 8 if quick else minutes * 60
    section_s = section_s or max(4, min(60, 4 * round(seconds / 8 / 4)))
    say(f"making {seconds:g} s of video")
    video = plain.make_film(samples.trailer(), folder / "video.mp4", renditions[0].height, seconds)
    return Work(video, seconds, renditions, section_s)


def contest(work: Work, place: Path, rounds: int) -> dict[str, Any]:
    """Every contestant in every round, and in the first a look at what they made."""
    costs: list[dict[str, Cost]] = []
    found: dict[str, Any] = {}
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        with tempfile.TemporaryDirectory(dir=place) as folder:
            costs.append(one_round(work, Path(folder)))
            if number == 0:
                found["renditions"] = renditions(work, Path(folder))
                found["steps_s"] = steps_s(Path(folder) / RUN)
        if number == 0:
            with tempfile.TemporaryDirectory(dir=place) as folder:
                found["added"] = added(work, Path(folder))
            decode = measure(lambda: plain.decode(work.video))
            found["storyboard over a full decode"] = found["steps_s"]["storyboard"] / decode.wall_s
    found["costs"] = {
        name: {
            "wall_s": spread([one[name].wall_s for one in costs]),
            "cpu_s": spread([one[name].cpu_s for one in costs]),
            "wall of one ffmpeg": spread([o[name].wall_s / o[SINGLE].wall_s for o in costs]),
            "cpu of one ffmpeg": spread([o[name].cpu_s / o[SINGLE].cpu_s for o in costs]),
        }
        for name in costs[0]
    }
    found["run over an ffmpeg per rendition"] = spread(
        [one[RUN].wall_s / one[EACH].wall_s for one in costs]
    )
    found["killed over run"] = spread([one[KILLED].wall_s / one[RUN].wall_s for one in costs])
    return found


def one_round(work: Work, place: Path) -> dict[str, Cost]:
    """Each contestant once, in a folder of its name."""
    costs: dict[str, Cost] = {}

    def compete(name: str, act: Callable[[Path], object]) -> None:
        folder = place / name
        folder.mkdir()
        costs[name] = measure(lambda: act(folder))
        say(f"  {name}: {costs[name].wall_s:.1f} s, {costs[name].cpu_s:.1f} CPU-s")

    video, renditions = work.video, work.renditions
    compete(SINGLE, lambda folder: plain.together(video, folder, renditions))
    compete(RUN, lambda folder: run(work, folder, renditions))
    kill_after_s = costs[RUN].wall_s / 2
    while KILLED not in costs:
        try:
            compete(KILLED, partial(run, work, renditions=renditions, kill_after_s=kill_after_s))
        except TooLate:  # something else slowed the first down
            shutil.rmtree(place / KILLED)
            kill_after_s /= 2
    compete(EACH, lambda folder: plain.one_by_one(video, folder, renditions))
    compete(SCRIPT, lambda f: plain.in_chunks(video, f, renditions, work.seconds, work.section_s))
    return costs


def run(
    work: Work, folder: Path, renditions: Sequence[RenditionSize], kill_after_s: float | None = None
) -> None:
    """`intermission run transcode`, and once more if it is killed in between."""
    video = folder / work.video.name
    if not video.exists():
        video.hardlink_to(work.video)
    ladder = ",".join(f"{rendition.name}={rendition.kbps}k" for rendition in renditions)
    argv = [sys.executable, "-m", "intermission", "run", PIPELINE, str(video), "--ladder", ladder]
    argv += ["--segment-seconds", str(plain.SEGMENT_S), "--chunk-seconds", str(work.section_s)]
    environment = {**os.environ, "INTERMISSION_SLOTS": str(CORES)}
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    if kill_after_s is not None:
        process = subprocess.Popen(
            argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        with suppress(subprocess.TimeoutExpired):
            process.wait(kill_after_s)
            raise TooLate("the run had ended before it was killed")
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = subprocess.run(argv, env=environment, check=False, text=True, **quiet)
    if done.returncode != 0:
        raise RuntimeError(f"the run ended with {done.returncode}:\n{done.stderr[-2000:]}")


def renditions(work: Work, place: Path) -> dict[str, dict[str, float]]:
    """Of each rendition: its size and likeness, ours beside that of the one ffmpeg."""
    found: dict[str, dict[str, float]] = {}
    for rendition in work.renditions:
        say(f"  comparing {rendition.name}")
        theirs = place / SINGLE / rendition.name
        ours = place / RUN / "videos" / work.video.stem / rendition.name
        size, size_theirs = size_bytes(ours), size_bytes(theirs)
        likeness = plain.ssim(ours / "index.m3u8", work.video, rendition)
        likeness_theirs = plain.ssim(theirs / "index.m3u8", work.video, rendition)
        found[rendition.name] = {
            "size_bytes": size,
            "size of one ffmpeg": size / size_theirs,
            "ssim": likeness,
            "ssim less one ffmpeg's": likeness - likeness_theirs,
        }
    return found


def size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.m*") if path.suffix != ".m3u8")


def added(work: Work, place: Path) -> dict[str, float]:
    """What a rendition costs beside one that is there, and by itself."""
    there, more = work.renditions[-1:], work.renditions[-2:]
    (place / "added").mkdir()
    run(work, place / "added", there)
    later = measure(lambda: run(work, place / "added", more))
    (place / "alone").mkdir()
    alone = measure(lambda: run(work, place / "alone", more[:1]))
    return {
        "later_cpu_s": later.cpu_s,
        "alone_cpu_s": alone.cpu_s,
        "cpu over alone": later.cpu_s / alone.cpu_s,
    }


def steps_s(folder: Path) -> dict[str, float]:
    """Of the undisturbed run: from when a step's first task began until its last one ended."""
    argv = [sys.executable, "-m", "intermission", "inspect", "video.mp4", "--json"]
    done = subprocess.run(argv, cwd=folder, check=True, capture_output=True, text=True)
    began: dict[str, list[datetime]] = {}
    ended: dict[str, list[datetime]] = {}
    for task in json.loads(done.stdout)["tasks"]:
        began.setdefault(task["step"], []).append(datetime.fromisoformat(task["started"]))
        ended.setdefault(task["step"], []).append(datetime.fromisoformat(task["ended"]))
    return {step: (max(ended[step]) - min(began[step])).total_seconds() for step in began}


def measure(act: Callable[[], object]) -> Cost:
    """Wall time, and the CPU time of every process that was started on the way."""
    before_s, began_s = _children_cpu_s(), time.perf_counter()
    act()
    wall_s = time.perf_counter() - began_s
    return Cost(wall_s, _children_cpu_s() - before_s)


def _children_cpu_s() -> float:
    with suppress(ChildProcessError):
        while True:  # those that a killed parent left behind came to us
            os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _adopt_orphans() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def tables(found: dict[str, Any], work: Work) -> str:
    head = f"{work.seconds:g} s of {work.renditions[0].name}, sections of {work.section_s} s"
    lines = [f"| {head} | wall, s | CPU, s | wall of one ffmpeg | CPU of one ffmpeg |"]
    lines += ["|---|---|---|---|---|"]
    for name, cost in found["costs"].items():
        lines.append(f"| {name} | {' | '.join(shown(one) for one in cost.values())} |")
    for name in ("run over an ffmpeg per rendition", "killed over run"):
        lines.append(f"| {name} | {shown(found[name])} | | | |")
    lines += ["", "| rendition | size, bytes | of one ffmpeg's | SSIM | less one ffmpeg's |"]
    lines += ["|---|---|---|---|---|"]
    for name, one in found["renditions"].items():
        size, of_theirs, likeness, less = one.values()
        lines.append(f"| {name} | {size:,} | {of_theirs:.4f} | {likeness:.5f} | {less:+.5f} |")
    later, alone, ratio = found["added"].values()
    lines += [
        "",
        f"A rendition added later: {later:.1f} CPU-s, alone {alone:.1f}: {ratio:.2f}.",
        f"Storyboard over a full decode: {found['storyboard over a full decode']:.3f}.",
        "Steps, s: " + ", ".join(f"{name} {s:.1f}" for name, s in found["steps_s"].items()) + ".",
    ]
    return "\n".join(lines)


def shown(one: dict[str, float]) -> str:
    return f"{one['median']:.3g} ({one['lowest']:.3g} to {one['highest']:.3g})"


def say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
