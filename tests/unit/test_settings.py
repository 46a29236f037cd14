"""Where settings come from, which source wins, and what a wrong one says."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from intermission.errors import EnvironmentFault, UsageError
from intermission.settings import Resolved, Settings, load_settings


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project" / "deep" / "deeper"
    folder.mkdir(parents=True)
    return folder


NOTHING: Mapping[str, Any] = {}


def load(project: Path, flags: Mapping[str, Any] = NOTHING, /, **environ: str) -> Resolved:
    return load_settings(flags, environ=environ, cwd=project)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_defaults(project: Path) -> None:
    found = load(project)
    assert found.settings == Settings(slots=len(os.sched_getaffinity(0)))
    assert found.settings.lease_ttl_s == 60
    assert found.settings.renew_every_s == 15
    assert found.settings.retry_delays_s == (1, 5, 15)
    assert found.settings.workspace_name == ".intermission"
    assert found.origin == dict.fromkeys(Settings.model_fields, "default")


def test_each_source_beats_the_next(project: Path, tmp_path: Path) -> None:
    user = write(
        tmp_path / "xdg/intermission/config.toml", "slots = 2\ndrain_s = 2\ngc_grace_s = 2"
    )
    nearest = write(project.parent / "intermission.toml", "slots = 3\ndrain_s = 3")
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "xdg"), "INTERMISSION_SLOTS": "4"}

    found = load(project, NOTHING, **environ)
    assert (found.settings.slots, found.settings.drain_s, found.settings.gc_grace_s) == (4, 3, 2)
    assert found.origin["slots"] == "environment INTERMISSION_SLOTS"
    assert found.origin["drain_s"] == str(nearest)
    assert found.origin["gc_grace_s"] == str(user)
    assert found.origin["lease_ttl_s"] == "default"

    flagged = load(project, {"slots": 5, "drain_s": None}, **environ)
    assert (flagged.settings.slots, flagged.settings.drain_s) == (5, 3)
    assert flagged.origin["slots"] == "flag --slots"


def test_only_the_nearest_project_file_counts(project: Path, tmp_path: Path) -> None:
    write(tmp_path / "project/intermission.toml", "slots = 3\ndrain_s = 3")
    write(project / "intermission.toml", "slots = 7")
    assert load(project).settings.slots == 7
    assert load(project).settings.drain_s == 20
    assert load(project.parent).settings.slots == 3


def test_user_file_below_home(project: Path, tmp_path: Path) -> None:
    write(tmp_path / ".config/intermission/config.toml", "slots = 9")
    assert load(project, HOME=str(tmp_path)).settings.slots == 9
    assert load(project, HOME=str(tmp_path), XDG_CONFIG_HOME="/nowhere").settings.slots != 9


def test_the_process_environment_is_the_default(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("INTERMISSION_SLOTS", "11")
    write(project / "intermission.toml", "drain_s = 12")
    found = load_settings({})
    assert (found.settings.slots, found.settings.drain_s) == (11, 12)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("SLOT_MEMORY_BYTES", "2GiB", 2 * 1024**3),
        ("SLOT_MEMORY_BYTES", "1000", 1000),
        ("RETRY_DELAYS_S", "0.5, 2", (0.5, 2.0)),
        ("CAN", "gpu, big", ("gpu", "big")),
        ("LOG_LEVEL", "DEBUG", "debug"),
        ("SLOT_CPU_S", "90", 90.0),
    ],
)
def test_text_forms(project: Path, name: str, text: str, value: object) -> None:
    found = load(project, NOTHING, **{f"INTERMISSION_{name}": text})
    assert getattr(found.settings, name.lower()) == value


def test_lists_in_a_file(project: Path) -> None:
    write(project / "intermission.toml", 'can = ["gpu"]\nretry_delays_s = [1, 2]')
    assert load(project).settings.can == ("gpu",)
    assert load(project).settings.retry_delays_s == (1.0, 2.0)


def test_settings_cannot_be_changed(project: Path) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load(project).settings.slots = 3


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("slots", "many", "valid integer"),
        ("slots", 0, "at least 1"),
        ("slots", True, "true and false"),
        ("lease_ttl_s", "nan", "finite"),
        ("lease_ttl_s", -1, "greater than 0"),
        ("drain_s", -1, "greater than or equal to 0"),
        ("slot_memory_bytes", "2 apples", "apples"),
        ("slot_memory_bytes", 0, "2GiB"),
        ("retry_delays_s", "1,x", "valid number"),
        ("retry_delays_s", "", "at least 1 item"),
        ("log_level", "loud", "debug, info, warning or error"),
        ("workspace_name", "a/b", "folder"),
        ("workspace_name", "..", "folder"),
    ],
)
def test_a_wrong_value_names_source_setting_expected_and_found(
    project: Path, name: str, value: object, expected: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load(project, {name: value})
    message = str(caught.value)
    for part in (f"flag --{name.replace('_', '-')}", name, repr(value), expected):
        assert part in message


def test_a_wrong_value_in_a_file_names_the_file(project: Path) -> None:
    path = write(project / "intermission.toml", "slots = 2.5")
    with pytest.raises(UsageError, match=f"{path}: slots cannot be 2.5"):
        load(project)


def test_an_unknown_setting_is_refused(project: Path) -> None:
    with pytest.raises(UsageError, match=r"INTERMISSION_SLOTZ: .*'slotz'. Did you mean slots\?"):
        load(project, INTERMISSION_SLOTZ="4")
    path = write(project / "intermission.toml", "[worker]\nslots = 2")
    with pytest.raises(UsageError, match=f"{path}: .*'worker'. The settings are: slots, can"):
        load(project)


def test_variables_that_are_not_settings_are_left_alone(project: Path) -> None:
    foreign = {
        "INTERMISSION_CRASH_AT": "after-claim",
        "INTERMISSION_SERVICE_HOST": "10.0.0.1",
        "INTERMISSION_PORT_80_TCP": "tcp://10.0.0.1:80",
        "INTERMISSION_DRAIN_S": "",
        "OTHER_SLOTS": "4",
    }
    assert set(load(project, NOTHING, **foreign).origin.values()) == {"default"}


@pytest.mark.parametrize("content", [b"slots = ", b"slots = '\xff'"])
def test_a_file_that_is_not_toml(project: Path, content: bytes) -> None:
    path = project / "intermission.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=f"{path} is not TOML"):
        load(project)


def test_a_file_that_cannot_be_read(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Permissions would not stop root, so the failure is put where the read happens.
    path = write(project / "intermission.toml", "slots = 2")

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(EnvironmentFault, match=f"{path} cannot be read: Permission denied"):
        load(project)


def test_renewals_must_fit_into_the_lease(project: Path) -> None:
    assert load(project, {"lease_ttl_s": 30}).settings.lease_ttl_s == 30
    with pytest.raises(UsageError) as caught:
        load(project, {"lease_ttl_s": 29})
    assert "renew_every_s (default) is 15 s" in str(caught.value)
    assert "lease_ttl_s (flag --lease-ttl-s), 29 s" in str(caught.value)


def test_every_setting_says_what_it_is() -> None:
    assert all(field.description for field in Settings.model_fields.values())


WATCH = {"place": "in", "pipeline": "transcribe"}


def test_watches_are_tables_in_a_file(project: Path) -> None:
    write(
        project / "intermission.toml",
        """
        [[watches]]
        place = "in"
        pipeline = "transcribe"
        include = ["*.mp4", "*.mov"]
        params = { model = "tiny.en", chunk_seconds = 30 }

        [[watches]]
        place = "s3://bucket/in"
        pipeline = "transcribe"
        cron = "0 2 * * *"
        timezone = "Europe/Berlin"
        """,
    )
    here, there = load(project).settings.watches
    assert (here.place, here.include, here.every_s) == ("in", ("*.mp4", "*.mov"), None)
    assert here.params == {"model": "tiny.en", "chunk_seconds": 30}
    assert (there.cron, there.timezone) == ("0 2 * * *", "Europe/Berlin")


def test_watches_are_json_in_a_variable(project: Path) -> None:
    found = load(project, INTERMISSION_WATCHES=json.dumps([WATCH | {"every_s": 2}]))
    (watch,) = found.settings.watches
    assert (watch.place, watch.pipeline, watch.every_s) == ("in", "transcribe", 2)


@pytest.mark.parametrize(
    ("watch", "message"),
    [
        (
            {"place": "in"},
            "watches, number 2: pipeline is missing. Expected: an installed pipeline",
        ),
        (WATCH | {"evry_s": 3}, "watches, number 2: there is no 'evry_s'. Did you mean every_s?"),
        (WATCH | {"colour": 3}, "there is no 'colour'. It has: place, pipeline, params,"),
        (WATCH | {"every_s": 0}, "every_s cannot be 0: Input should be greater than or equal"),
        (WATCH | {"priority": True}, "priority cannot be True"),
        (WATCH | {"params": 3}, "params cannot be 3"),
        (WATCH | {"place": ""}, "place cannot be ''"),
    ],
)
def test_a_wrong_watch_is_named_by_its_number(
    project: Path, watch: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load(project, INTERMISSION_WATCHES=json.dumps([WATCH, watch]))
    assert str(caught.value).startswith("environment INTERMISSION_WATCHES: watches")
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["{", "3", "[3]", '{"place": "in"}', '"in"'])
def test_watches_that_are_no_tables_are_refused(project: Path, text: str) -> None:
    with pytest.raises(UsageError, match="each a table with place and pipeline"):
        load(project, INTERMISSION_WATCHES=text)


OVERRIDE = {"pipeline": "transcode", "sources": ["concert-*.mp4", "4k/*"], "params": {"crf": 20}}


@pytest.mark.parametrize(
    ("pipeline", "source", "is_for"),
    [
        ("transcode", "/films/concert-1.mp4", True),
        ("transcode", "concert-1.mp4", True),
        ("transcode", "s3://bucket/films/4k/a.mov", True),
        ("transcode", "/films/a-concert-1.mp4", False),
        ("transcode", "/films/14k/a.mov", False),
        ("transcribe", "/films/concert-1.mp4", False),
    ],
)
def test_an_override_is_for_names_and_ends_of_paths(
    pipeline: str, source: str, is_for: bool, project: Path
) -> None:
    found = load(project, INTERMISSION_OVERRIDES=json.dumps([OVERRIDE]))
    (override,) = found.settings.overrides
    assert override.is_for(pipeline, source) is is_for


def test_a_wrong_override_is_named_by_its_number(project: Path) -> None:
    wrong = {name: OVERRIDE[name] for name in ("pipeline", "params")}
    with pytest.raises(UsageError, match="overrides, number 2: sources is missing"):
        load(project, INTERMISSION_OVERRIDES=json.dumps([OVERRIDE, wrong]))
