"""A pipeline on the command line: its own help, its options, its name as a command."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from intermission.cli import app
from intermission.cli.pipeline_commands import split_words
from intermission.errors import ParameterError
from intermission.pipeline import load

TRANSCODE = load("intermission.pipelines.transcode:transcode")


def shown(*words: str) -> str:
    return " ".join(CliRunner().invoke(app, [*words]).output.split())


def test_the_help_of_a_pipeline_shows_its_options_with_ranges_and_defaults() -> None:
    text = shown("run", "transcribe", "--help")
    assert "Options of transcribe:" in text
    assert "--chunk-seconds N Longest chunk, in seconds [5-1800; default: 60]" in text
    assert "--codec h264|hevc|av1" in shown("plan", "transcode", "-h")
    assert text == shown("transcribe", "--help")


def test_no_help_page_has_a_type_of_python() -> None:
    names = [command.name or command.callback.__name__ for command in app.registered_commands]  # type: ignore[union-attr]
    for name in names:
        text = shown(name.replace("_", "-"), "--help")
        assert "Usage: intermission" in text, name
        assert "<str>" not in text, name
        assert "list[" not in text, name


def test_the_first_page_names_the_pipelines() -> None:
    assert "transcode, transcribe" in shown("--help")


def test_hyphens_and_underscores_are_the_same() -> None:
    both = ["--chunk_seconds", "9", "--audio-kbps=64", "a.mp4"]
    assert split_words(both, TRANSCODE) == (["a.mp4"], {"chunk_seconds": "9", "audio_kbps": "64"})


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--surround"], "true"),
        (["--no-surround"], "false"),
        (["--surround", "false"], "false"),
        (["--surround=true"], "true"),
    ],
)
def test_a_flag_needs_no_value(words: list[str], value: str) -> None:
    assert split_words([*words, "a.mp4"], TRANSCODE) == (["a.mp4"], {"surround": value})


def test_a_hyphen_alone_is_a_source() -> None:
    assert split_words(["-", "--crf", "-1"], TRANSCODE) == (["-"], {"crf": "-1"})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--chunk-secnds", "9"], "Did you mean --chunk-seconds?"),
        (["--no-crf"], "there is no option --no-crf"),
        (["--crf"], "--crf has no value. Write --crf N."),
        (["--crf", "1", "--crf", "2"], "--crf is given twice"),
        (["-crf", "1"], "Write --crf, with two hyphens."),
    ],
)
def test_what_cannot_be_meant_is_told(words: list[str], said: str) -> None:
    with pytest.raises(ParameterError) as caught:
        split_words(words, TRANSCODE)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"chunk_seconds": "0"}, "--chunk-seconds must be between 1 and 3600, got 0."),
        ({"codec": "vp9"}, "--codec must be h264, hevc or av1, got vp9."),
        ({"crf": "low"}, "--crf must be between -1 and 63, got low."),
    ],
)
def test_a_value_out_of_range_is_told_with_the_range(given: dict[str, str], said: str) -> None:
    with pytest.raises(ParameterError) as caught:
        TRANSCODE.bind(given)
    assert said in str(caught.value)


def test_h265_is_hevc() -> None:
    assert TRANSCODE.bind({"codec": "h265"}) == TRANSCODE.bind({"codec": "hevc"})
