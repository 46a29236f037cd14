"""hls.js in a real browser plays what `transcode` makes, also while it is being made."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

import media_samples
import samples
from servers.site import serving
from transcoding import REF

pytestmark = pytest.mark.slow
SECONDS = 6
HOW = ("--ladder", "240p,120p", "--segment-seconds", "1", "--chunk-seconds", "2")
"""Joins are at 2 and 4 s."""
PASSAGES = range(0, SECONDS, 2)
PLAYER = Path(__file__).with_name("player.html")
PLAYING_S = 20
CUES = [[0.25, 1.75, "The first words"], [2.5, 5.5, "Größer & später,\nin zwei Zeilen"]]
Run = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(scope="module")
def browser(require: Callable[[str], str]) -> Iterator[Browser]:
    chromium = require("chromium")
    flags = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """A page that can be told to load `player.html`, beside the folder that is transcoded into."""
    folder = tmp_path / "videos" / "video"
    with serving(folder, {"player.html": PLAYER, "hls.js": samples.hls_js()}) as address:
        page = browser.new_page(base_url=address, viewport={"width": 340, "height": 260})
        page.set_default_timeout(PLAYING_S * 1000)
        yield page
        page.close()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Starts transcoding a video with a tone."""
    video = media_samples.make(tmp_path / "video.mp4", seconds=SECONDS, size=(320, 240))
    started: list[subprocess.Popen[bytes]] = []

    def start(*more: str, **env: str) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "intermission", "run", REF, str(video), *HOW, *more]
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("INTERMISSION_")}
        environment = {**inherited, "HOME": str(tmp_path), "INTERMISSION_SLOTS": "2", **env}
        started.append(subprocess.Popen(argv, cwd=tmp_path, env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def wait(page: Page, condition: str) -> None:
    """Until something is true in the page; what the page has to say, if it is not in time."""
    try:
        page.wait_for_function(condition)
    except Exception as e:
        raise AssertionError(f"never {condition}: {told(page)}") from e


def until_served(page: Page, name: str) -> None:
    deadline_s = time.monotonic() + PLAYING_S
    while not page.request.get(name).ok:
        assert time.monotonic() < deadline_s, f"there is no {name}"
        page.wait_for_timeout(20)


def told(page: Page) -> dict[str, Any]:
    return page.evaluate("({...told, at: video.currentTime, duration: video.duration})")


def test_it_plays_over_joins_and_changes_rendition(page: Page, run: Run) -> None:
    assert run().wait(60) == 0
    page.goto("/player.html")
    wait(page, "video.currentTime > 0.5")
    page.evaluate("hls.nextLevel = 1")
    wait(page, "video.videoHeight == 240 && video.currentTime > 2.2")
    page.evaluate("hls.nextLevel = 0")
    wait(page, "video.videoHeight == 120 && video.currentTime > 4.5")
    found = told(page)
    assert found["errors"] == []
    assert found["heights"] == [120, 240, 120]
    assert found["stall_s"] < 0.5
    assert found["loudness"] > 0.05


def webvtt(cues: list[list[Any]]) -> str:
    text = "WEBVTT\nKind: captions\n\nNOTE nobody sees this\n"
    for start, end, words in cues:
        escaped = words.replace("&", "&amp;")
        text += f"\n00:{start:06.3f} --> 00:00:{end:06.3f} line:50%\n{escaped}\n"
    return text


def test_subtitles_are_shown_when_they_are_said(page: Page, run: Run, tmp_path: Path) -> None:
    (tmp_path / "words.vtt").write_text(webvtt(CUES), encoding="utf-8")
    assert run("--subtitles", "words.vtt").wait(60) == 0
    page.goto("/player.html")
    wait(page, "hls.subtitleTracks.length == 1 && video.textTracks.length == 1")
    assert page.evaluate("video.textTracks[0].kind") == "subtitles"
    page.evaluate("hls.subtitleTrack = 0")
    wait(page, f"video.textTracks[0].cues?.length == {len(CUES)}")
    found = page.evaluate(
        "[...video.textTracks[0].cues].map(cue =>"
        " [cue.startTime, cue.endTime, cue.getCueAsHTML().textContent])"
    )
    assert found == CUES
    page.evaluate("watchCues(video.textTracks[0]); video.currentTime = 0; video.play()")
    wait(page, "video.ended")
    said = [one for one in told(page)["said"] if one[1]]
    assert [words for _, words in said] == [words for _, _, words in CUES]
    assert [at for at, _ in said] == pytest.approx([at for at, _, _ in CUES], abs=0.3)
    assert told(page)["errors"] == []


def test_it_plays_while_it_is_made(page: Page, run: Run, tmp_path: Path) -> None:
    gates = tmp_path / "gates"
    gates.mkdir()
    (gates / "0").touch()
    making = run(GATES=str(gates))
    until_served(page, "/master.m3u8")
    page.goto("/player.html")
    wait(page, "video.currentTime > 1")
    assert told(page)["live"] == [True]
    for first in PASSAGES:
        (gates / str(first)).touch()
    assert making.wait(60) == 0
    wait(page, "video.ended")
    found = told(page)
    assert not [error for error in found["errors"] if error[0]]
    assert found["live"] == [True, False]
    assert found["at"] == pytest.approx(SECONDS, abs=0.1)
