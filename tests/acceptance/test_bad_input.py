"""What bad input gets: one sentence with its remedy, the right exit code, and nothing lost."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from command_line import PIPELINES, Cli, in_sentence, shell

_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2


def without_privilege() -> None:
    """In the child: permissions hold even for root, once its command is loaded."""
    if os.geteuid() == 0:
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own: 3 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        shell(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)])
    except OSError as e:
        refused(str(e))
    yield folder
    shell(["umount", "--lazy", str(folder)])


def refused(why: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(f"a small disk cannot be mounted, and on CI nothing may be skipped: {why}")
    pytest.skip(f"a small disk cannot be mounted: {why}")


def test_a_missing_source(cli: Cli) -> None:
    ended = cli.run("letters", "nowhere.txt", code=1)
    in_sentence(ended.err, "nowhere.txt does not exist", "Check the path")


def test_a_folder_without_a_match(cli: Cli) -> None:
    cli.source("in/a.txt")
    ended = cli.run("letters", "in", "--include", "*.mp4", code=1)
    in_sentence(ended.err, "in has no file that matches *.mp4")


def test_an_unreadable_folder(cli: Cli) -> None:
    cli.source("in/closed/a.txt")
    (cli.folder / "in/closed").chmod(0)
    ended = cli.run("letters", "in", code=1, preexec_fn=without_privilege)
    in_sentence(ended.err, "in/closed cannot be listed: Permission denied", "permissions")


def test_an_unreadable_source(cli: Cli) -> None:
    source = cli.source()
    source.chmod(0)
    ended = cli.run("letters", source, code=1, preexec_fn=without_privilege)
    assert "a.txt cannot be read: Permission denied" in ended.err


def test_a_folder_that_cannot_be_written_to(cli: Cli) -> None:
    source = cli.source("in/a.txt")
    source.parent.chmod(0o555)
    ended = cli.run("letters", source, code=4, preexec_fn=without_privilege)
    assert "this user may not do that" in ended.err
    assert "`ls -ld`" in ended.err


def test_what_is_no_file(cli: Cli) -> None:
    os.mkfifo(cli.folder / "pipe")
    in_sentence(cli.run("letters", "pipe", code=1).err, "pipe is neither a file nor a folder")


def test_a_name_that_is_no_text(cli: Cli) -> None:
    cli.source("in/a.txt", "ab")
    Path(os.fsdecode(os.fsencode(cli.folder) + b"/in/\xff.txt")).write_text("ab")
    ended = cli.run("letters", "in", "--json", code=3)
    good, bad = ended.json["sources"]
    assert good["state"] == "done"
    assert "is not UTF-8" in bad["error"]["message"]


def test_a_garbage_ledger_is_rebuilt_from_receipts(cli: Cli) -> None:
    source = cli.source()
    cli.run("letters", source)
    cli.calls()
    for path in cli.workspace(source).glob("ledger.sqlite-*"):
        path.unlink()
    (cli.workspace(source) / "ledger.sqlite").write_bytes(b"not a ledger at all" * 100)
    ended = cli.run("letters", source, code=4)
    assert "is damaged or not a ledger" in ended.err
    assert "intermission rebuild SOURCE" in ended.err
    in_sentence(cli("status", source, code=4).err, "is damaged or not a ledger")
    assert "5 of 5 known tasks are finished" in cli("rebuild", source).out
    assert "reused 5 of 5 tasks" in cli.run("letters", source).err
    assert not cli.calls()
    (old,) = cli.workspace(source).glob("ledger.sqlite.*.old")
    assert old.read_bytes().startswith(b"not a ledger")


def test_a_damaged_ledger_hides_no_other_job(cli: Cli) -> None:
    good, bad = cli.source("good.txt", "ab"), cli.source("bad.txt", "cd")
    cli.run("letters", good)
    cli.workspace(bad).mkdir()
    (cli.workspace(bad) / "ledger.sqlite").write_bytes(b"not a ledger at all" * 100)
    listed = cli("ls", code=4)
    assert "good.txt" in listed.out
    in_sentence(listed.err, "bad.txt", "damaged")
    key = cli("status", good, "--json").json["job"]
    assert "good.txt" in cli("status", key[:12]).out


def test_a_newer_ledger_is_left_alone(cli: Cli) -> None:
    source = cli.source()
    cli.run("letters", source)
    ledger = cli.workspace(source) / "ledger.sqlite"
    connection = apsw.Connection(str(ledger))
    connection.execute("PRAGMA user_version=4711")
    connection.close()
    before = ledger.read_bytes()
    ended = cli.run("letters", source, code=4)
    assert "has schema 4711, and this program knows up to" in ended.err
    assert "upgrade this one" in ended.err
    assert ledger.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import nothing_of_that_name\n", ["does not import", "nothing_of_that_name"]),
        ("def f(:\n", ["does not import", "SyntaxError"]),
        ("raise SystemExit(3)\n", ["does not import", "SystemExit"]),
        ("x = 1\n", ["has no 'p'"]),
        ("p = 1\n", ["not a Pipeline"]),
    ],
)
def test_a_pipeline_that_does_not_import(cli: Cli, text: str, words: list[str]) -> None:
    source = cli.source()
    module = cli.source("pipe.py", text)
    for command in ("run", "plan"):
        in_sentence(cli(command, f"{module}:p", source, code=2).err, *words)
    assert not (cli.folder / ".intermission").exists()


def test_a_pipeline_nobody_knows(cli: Cli) -> None:
    ended = cli("run", "transmogrify", cli.source(), code=2)
    in_sentence(ended.err, "there is no pipeline 'transmogrify'", "path/to/file.py:name")


def test_wrong_parameters(cli: Cli) -> None:
    source = cli.source()
    wrong = cli.run("letters", source, "--param", "size=many", code=2)
    in_sentence(wrong.err, "--size must be", "got many")
    unknown = cli.run("letters", source, "--param", "colour=red", code=2)
    in_sentence(unknown.err, "has no parameter 'colour'", "mark, size")
    shapeless = cli.run("letters", source, "--param", "size", code=2)
    in_sentence(shapeless.err, "expected --param NAME=VALUE, found 'size'")
    twice = cli.run("letters", source, "-p", "size=1", "-p", "size=2", code=2)
    in_sentence(twice.err, "parameter 'size' is given twice")
    assert not (cli.folder / ".intermission").exists()


def test_wrong_usage(cli: Cli) -> None:
    assert "Missing argument" in cli("run", code=2).err
    in_sentence(cli("run", "--sloths", "3", code=2).err, "no option --sloths")
    source = cli.source()
    in_sentence(cli.run("letters", source, "--sise", "3", code=2).err, "Did you mean --size?")
    in_sentence(cli.run("letters", source, "--size", code=2).err, "--size has no value")
    in_sentence(cli.run("letters", "--size", "3", code=2).err, "no source is given")
    assert "No such option" in cli("status", "--sloths", code=2).err
    assert "No such command" in cli("rum", code=2).err
    in_sentence(cli("ls", "nowhere", code=2).err, "nowhere is not a folder")
    in_sentence(cli.run("letters", cli.source(), "--slots", 0, code=2).err, "--slots", "at least 1")
    in_sentence(cli("status", "feed", code=2).err, "no job has a key that begins with 'feed'")


def test_an_error_is_also_said_in_json(cli: Cli) -> None:
    document = cli.run("letters", "nowhere.txt", "--json", code=1).json
    assert document["error"]["kind"] == "SourceError"
    assert document["error"]["remedy"].startswith("Check the path")
    assert document["exit_code"] == 1


def test_the_traceback_is_there_for_those_who_ask(cli: Cli) -> None:
    ended = cli.run("letters", "nowhere.txt", "-v", code=1)
    assert "Traceback (most recent call last)" in ended.err


def test_a_full_disk_loses_nothing(cli: Cli, disk: Path) -> None:
    source = cli.source("disk/a.txt", "abcdef")
    ended = cli.run("bulk", source, "--slots", 1, code=4)
    in_sentence(ended.err, "is full", "Free some space")
    before = cli.calls()
    shell(["mount", "-o", "remount,size=32m", str(disk)])
    ended = cli.run("bulk", source)
    after = cli.calls()
    done_before = [call for call in before if call not in after]
    assert f"reused {len(done_before)} of 4 tasks" in ended.err
    assert len(done_before) >= 2
    assert "reused 4 of 4 tasks" in cli.run("bulk", source).err


def test_a_read_only_disk_loses_nothing(cli: Cli, disk: Path) -> None:
    source = cli.source("disk/a.txt", "abcdef")
    cli.run("letters", source)
    cli.calls()
    shell(["mount", "-o", "remount,ro", str(disk)])
    ended = cli.run("letters", source, "--param", "mark=?", code=4)
    assert "is on a read-only file system" in ended.err
    assert "Mount it writable" in ended.err
    assert "would run" in cli("plan", f"{PIPELINES}:letters", source).out
    findings = cli("doctor", "--in", disk, "--json", code=4).json["findings"]
    assert {"create-only", "ledger"} <= {one["name"] for one in findings if not one["well"]}
    shell(["mount", "-o", "remount,rw", str(disk)])
    assert "reused 5 of 5 tasks" in cli.run("letters", source).err
    assert not cli.calls()
