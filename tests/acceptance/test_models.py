"""`intermission models`: what is downloaded is whole, however often the download is disturbed."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import TIMEOUT_S, Cli, in_sentence

from servers.model_hub import COMMIT, FILES, WEIGHTS, Hub, model_hub

WANTED = {name: data for name, data in FILES.items() if name != "README.md"}
HALF = len(WEIGHTS) // 2


@pytest.fixture
def hub(cli: Cli) -> Iterator[Hub]:
    with model_hub() as hub:
        cli.env["INTERMISSION_MODEL_HUB_URL"] = hub.url
        cli.env["XDG_CACHE_HOME"] = str(cli.folder / "cache")
        yield hub


def repository(cli: Cli) -> Path:
    return cache(cli) / "models/models--Systran--faster-whisper-tiny"


def cache(cli: Cli) -> Path:
    return cli.folder / "cache/intermission"


def assert_whole(cache: Path) -> None:
    """The layout that Hugging Face's own cache has, with the hub's bytes and nothing half done."""
    folder = cache / "models/models--Systran--faster-whisper-tiny"
    assert (folder / "refs/main").read_text() == COMMIT
    snapshot = folder / "snapshots" / COMMIT
    assert {path.name: path.read_bytes() for path in snapshot.iterdir()} == WANTED
    assert all(path.resolve().parent == folder / "blobs" for path in snapshot.iterdir())
    assert not list((folder / "blobs").glob("*.incomplete"))


def test_a_model_is_downloaded_and_found(cli: Cli, hub: Hub) -> None:
    done = cli("models", "download", "tiny", "--json").json
    assert_whole(cache(cli))
    assert (done["event"], done["name"], done["present"]) == ("model", "tiny", True)
    assert done["path"] == str(repository(cli) / "snapshots" / COMMIT)
    assert "README.md" not in hub.served
    models = {one["name"]: one for one in cli("models", "list", "--json").json["models"]}
    assert models["tiny"] == {k: v for k, v in done.items() if k not in ("v", "event")}
    assert not models["large-v3"]["present"]
    assert models["large-v3"]["size_bytes"] > 10**9
    assert models["turbo"]["repository"] == "mobiuslabsgmbh/faster-whisper-large-v3-turbo"
    hub.served.clear()
    again = cli("models", "download", "tiny")
    assert again.out.strip() == done["path"]
    assert not hub.served


def test_a_cut_connection_is_resumed_where_it_broke(cli: Cli, hub: Hub) -> None:
    hub.cuts += [HALF, 1000]
    cli("models", "download", "tiny")
    assert_whole(cache(cli))
    assert hub.ranges == ["", f"bytes={HALF}-", f"bytes={HALF + 1000}-"]


def test_a_hub_without_ranges_begins_anew(cli: Cli, hub: Hub) -> None:
    hub.cuts.append(HALF)
    hub.ignores_ranges = True
    cli("models", "download", "tiny")
    assert_whole(cache(cli))


def test_wrong_bytes_are_never_kept(cli: Cli, hub: Hub) -> None:
    hub.wrong = 1
    cli("models", "download", "tiny")
    assert_whole(cache(cli))


def test_a_hub_that_always_lies_is_given_up(cli: Cli, hub: Hub) -> None:
    hub.wrong = 1000
    ended = cli("models", "download", "tiny", code=4)
    in_sentence(ended.err, "model.bin", "other bytes", "model_hub_url")
    assert not (repository(cli) / "refs/main").exists()
    assert not cli("models", "list", "--json").json["models"][1]["present"]


def test_passing_errors_are_tried_again_and_others_told(cli: Cli, hub: Hub) -> None:
    hub.statuses += [503, 429]
    cli("models", "download", "tiny")
    assert_whole(cache(cli))
    gone = cli("models", "download", "base", code=4)
    in_sentence(gone.err, "404", "Systran/faster-whisper-base")
    unknown = cli("models", "download", "huge", code=2)
    in_sentence(unknown.err, "'huge'", "models list")


def test_without_a_network_it_says_what_to_do(cli: Cli, hub: Hub) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    env = {"INTERMISSION_MODEL_HUB_URL": f"http://127.0.0.1:{port}"}
    ended = cli("models", "download", "tiny", code=4, env=env)
    in_sentence(ended.err, f"127.0.0.1:{port}", "model_hub_url", "copy")


def test_a_missing_model_names_the_command(cli: Cli, hub: Hub) -> None:
    source = cli.source("talk.wav", "RIFF")
    ended = cli("run", "transcribe", source, "--model", "tiny", code=4)
    in_sentence(ended.err, "'tiny' is not on this machine", "`intermission models download tiny`")


def test_doctor_names_the_models(cli: Cli, hub: Hub) -> None:
    cli("models", "download", "tiny")
    findings = {one["name"]: one for one in cli("doctor", "--json").json["findings"]}
    assert "tiny" in findings["models"]["found"].split(", ")


def test_a_new_version_replaces_the_old_one_at_once(cli: Cli, hub: Hub) -> None:
    cli("models", "download", "tiny")
    old = repository(cli) / "snapshots" / COMMIT
    hub.commit, hub.files["model.bin"] = "d" * 40, b"better weights"
    path = Path(cli("models", "download", "tiny").out.strip())
    assert (path.name, (path / "model.bin").read_bytes()) == ("d" * 40, b"better weights")
    assert (old / "model.bin").read_bytes() == WEIGHTS, "a job that uses it is not disturbed"


def test_two_downloads_at_once_do_not_disturb_each_other(cli: Cli, hub: Hub) -> None:
    hub.cuts += [HALF, 1000]
    both = [cli.start("models", "download", "tiny") for _ in range(2)]
    assert [cli.end(one).code for one in both] == [0, 0]
    assert_whole(cache(cli))
    assert hub.served.count("model.bin") == 3


# For every n: a download that kills itself at the n-th thing it does to a file, a name or a
# connection, or when the n-th block has arrived, and a second one in the same folder, until a
# first one comes to its end.
KILLED = """
import os, signal, sys
from pathlib import Path
import httpx
from intermission.operations.models import download_model
from intermission.settings import Settings
STEPS = ("open", "os.rename", "os.remove", "os.mkdir", "os.symlink", "os.truncate",
         "socket.connect", "fcntl.flock")

def ends(folder, step=0):
    child = os.fork()
    if child == 0:
        left = step
        def count(*_):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        def audit(event, args):
            if event in STEPS and (event != "open" or "models--" in str(args[0])):
                count()
        sys.addaudithook(audit)
        settings = Settings(model_hub_url=sys.argv[1], cache_dir=folder)
        download_model(settings, "tiny", count)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

step, again = 1, sys.argv[3] == "again"
while ends(Path(sys.argv[2], "0" if again else str(step)), step) == -signal.SIGKILL:
    if not again and ends(Path(sys.argv[2], str(step))) != 0:
        sys.exit(f"the run after a kill at step {step} failed")
    step += 1
print(step)
"""


def kill_at_each_step(folder: Path, hub: Hub, how: str) -> int:
    """How many steps there were, the last of them beyond the end."""
    arguments = [sys.executable, "-c", KILLED, hub.url, str(folder), how]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
def test_killed_at_any_step_the_next_run_ends_with_the_right_bytes(tmp_path: Path) -> None:
    with model_hub() as hub:
        steps = kill_at_each_step(tmp_path, hub, "fresh")
    assert steps > 30, "it does more than that"
    for step in range(1, steps + 1):
        assert_whole(tmp_path / str(step))


def test_killed_again_and_again_it_still_gets_on(tmp_path: Path) -> None:
    """Each run goes one step further on what the last one left."""
    with model_hub() as hub:
        assert kill_at_each_step(tmp_path, hub, "again") > 10
    assert_whole(tmp_path / "0")


def test_a_folder_that_cannot_be_written_is_told(cli: Cli, hub: Hub) -> None:
    (cli.folder / "cache").write_text("a file")
    ended = cli("models", "download", "tiny", code=4)
    in_sentence(ended.err, "cache")
