"""Options and commands that people type by habit from other tools, and what does it here."""

from __future__ import annotations

OPTIONS = {
    "-i": "Name the source without -i.",
    "-y": "Leave it out: outputs are replaced when they changed, and nothing asks.",
    "-c:v": "Choose the video codec with --codec h264, hevc or av1.",
    "-vcodec": "Choose the video codec with --codec h264, hevc or av1.",
    "-c:a": "Audio is always AAC; set its bit rate with --audio-kbps.",
    "-b:a": "Set the bit rate of audio with --audio-kbps 128.",
    "-b:v": "Set bit rates in the ladder: --ladder 1080p=6000k,720p=3000k.",
    "-s": "Choose sizes with --ladder 1080p,720p.",
    "-vf": "Choose sizes with --ladder 1080p,720p; filters are not offered.",
    "-crf": "Write --crf, with two hyphens.",
    "-preset": "Write --preset, with two hyphens.",
    "-threads": "Write --threads, with two hyphens.",
    "--quality": "Write --crf 23; lower is better.",
    "-resume": "Leave it out: the same command always continues.",
    "--resume": "Leave it out: the same command always continues.",
    "-profile": "Settings come from a file and the environment: see `intermission config`.",
    "--concurrency": "Write --slots N for how many tasks run at a time.",
    "--max-workers": "Write --slots N for how many tasks run at a time.",
    "-j": "Write --slots N for how many tasks run at a time.",
    "--fp16": "Write --compute-type float16, or float32.",
    "--word-timestamps": "Leave it out: word times are always in the .json output.",
    "--vad-filter": "Leave it out: pauses are always found by voice activity.",
    "--condition-on-previous-text": "Leave it out: each chunk is transcribed by itself.",
    "--temperature": "It is not offered: a transcript must come out the same every time.",
    "--best-of": "It is not offered; --beam-size is.",
    "--model-dir": "Give a folder as the model: --model FOLDER.",
    "--model-size": "Write --model small.",
    "--output": "Write --output-dir FOLDER, or -o FOLDER.",
    "--out": "Write --output-dir FOLDER, or -o FOLDER.",
    "--force": "Write --fresh to start over.",
    "--overwrite": "Write --fresh to start over.",
}

COMMANDS = {
    "list": "ls",
    "jobs": "ls",
    "start": "run",
    "exec": "run",
    "log": "logs",
    "show": "inspect",
    "describe": "inspect",
    "clean": "gc",
    "purge": "gc",
    "stop": "cancel",
    "kill": "cancel",
    "server": "serve",
    "encode": "transcode",
    "convert": "transcode",
    "hls": "transcode",
    "whisper": "transcribe",
}


def instead_of(option: str) -> str | None:
    """What to do instead of an option of another tool."""
    return OPTIONS.get(option.replace("_", "-")) or OPTIONS.get(option)
