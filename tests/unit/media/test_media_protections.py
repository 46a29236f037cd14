"""A machine without a protection is told so, and may be refused. Its lack is made by a filter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

WITHOUT_LANDLOCK = """
import ctypes, struct
from pathlib import Path
# A filter that answers landlock_create_ruleset as a kernel without it does: ENOSYS.
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 444), (0x06, 0, 0, 0x50026), (0x06, 0, 0, 0x7FFF0000)]
program = b"".join(struct.pack("=HBBI", *one) for one in code)
buffer = ctypes.create_string_buffer(program, len(program))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
header = struct.pack("@HP", len(code), ctypes.addressof(buffer))
assert libc.prctl(22, 2, header, 0, 0) == 0
"""
PROBE = """
from intermission.errors import EnvironmentFault
from intermission.media import Limits, probe
from intermission.settings import Settings
try:
    limits = Limits.of(Settings(media_sandbox={sandbox!r}))
    print(probe({path!r}, limits=limits).duration_ms)
except EnvironmentFault as e:
    print(e.message, e.remedy)
"""


def run(code: str, *, before: str = WITHOUT_LANDLOCK, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", before + code],
        capture_output=True,
        text=True,
        timeout=60,
        env=env,
        check=True,
    )
    return done.stdout.strip()


def test_a_child_that_must_be_protected_refuses_to_read_without(video: Path) -> None:
    said = run(PROBE.format(sandbox="require", path=str(video)))
    assert "no Landlock" in said
    assert "media_sandbox" in said
    assert run(PROBE.format(sandbox="best-effort", path=str(video))).isdigit()


def test_where_everything_holds_it_reads(video: Path, landlock: int) -> None:
    assert run(PROBE.format(sandbox="require", path=str(video)), before="").isdigit()


def test_doctor_says_which_protections_hold(landlock: int) -> None:
    code = (
        "from intermission.operations.doctor import examine\n"
        "(media,) = [one for one in examine(Path('.')) if one.name == 'media']\n"
        "print(media.well, media.found, media.remedy)\n"
    )
    assert "Landlock" in run(code, before="from pathlib import Path\n")
    assert "seccomp holds" in run(code, before="from pathlib import Path\n")
    lacking = run(code)
    assert lacking.startswith("True ")
    assert "no Landlock" in lacking
    assert "seccomp holds" in lacking
    required = run(code, env={"INTERMISSION_MEDIA_SANDBOX": "require"})
    assert required.startswith("False ")
    assert "media_sandbox" in required


def test_a_worker_logs_once_what_is_missing(landlock: int) -> None:
    code = (
        "import logging, sys\n"
        "logging.basicConfig(stream=sys.stdout)\n"
        "from intermission.operations.media_protection import log_missing\n"
        "from intermission.settings import Settings\n"
        "log_missing(Settings())\n"
    )
    assert "no Landlock" in run(code)
    assert "media_sandbox" in run(code)
    assert run(code, before="") == ""
