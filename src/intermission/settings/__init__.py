"""Settings: what a user may tune, where each value came from, and which source wins.

Flags beat environment variables (`INTERMISSION_SLOTS`), which beat the nearest
`intermission.toml` at or above the working directory, which beats the user's own
`config.toml`, which beats the defaults below. Nothing here decides what a setting does.

The sources are merged by hand instead of with pydantic-settings: that package takes longer
to import than a finished job takes to answer, and it does not say where a value came from.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
)

from intermission.errors import EnvironmentFault, UsageError
from intermission.model import LOST_MAX
from intermission.settings.parameter_overrides import Override
from intermission.settings.watch_rules import WatchedPlace, from_json, split, wrong_table

PREFIX = "INTERMISSION_"
PROJECT_FILE = "intermission.toml"

# The prefix is not ours alone: a fault point is armed under it, and Kubernetes gives every pod
# beside a service called `intermission` the variables INTERMISSION_SERVICE_* and _PORT*.
_FOREIGN = re.compile(r"CRASH_AT|SERVICE_\w+|PORT(_\w+)?")


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _cores() -> int:
    """The cores this process may use, which a container often narrows."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1


def _cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base or Path.home() / ".cache", "intermission")


_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def seconds(value: Any) -> Any:
    """`30d`, `12h`, `90m`, `45s` or `2w` in seconds; anything else as it is."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([smhdw])", value) if isinstance(value, str) else None
    return value if found is None else float(found[1]) * _UNITS_S[found[2]]


_Duration = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Delay = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Settings(BaseModel):
    """Every setting with its default. A description says what a value must be."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    slots: int = Field(
        default_factory=_cores, ge=1, description="how many tasks run at a time, at least 1"
    )
    can: Annotated[tuple[str, ...], BeforeValidator(split)] = Field(
        default=(), description="labels this worker offers to steps that need one, such as gpu"
    )
    lease_ttl_s: _Duration = Field(
        default=60.0, description="seconds until the tasks of a vanished worker are claimable again"
    )
    renew_every_s: _Duration = Field(
        default=15.0, description="seconds between renewals, at most half of lease_ttl_s"
    )
    lost_max: int = Field(
        default=LOST_MAX,
        ge=1,
        description="how many workers may vanish while they run a task before it fails",
    )
    drain_s: _Delay = Field(
        default=20.0, description="seconds that running tasks get to end in a drain"
    )
    slot_memory_bytes: Annotated[ByteSize, Field(gt=0)] | None = Field(
        default=None, description="memory limit of one slot, such as 2GiB"
    )
    slot_cpu_s: _Duration | None = Field(default=None, description="CPU seconds one task may use")
    retry_delays_s: Annotated[tuple[_Delay, ...], BeforeValidator(split)] = Field(
        default=(1.0, 5.0, 15.0),
        min_length=1,
        description="seconds to wait before each further attempt, such as 1,5,15; unless set, "
        "workers of a fleet wait 60, 300 and 900 s, give or take 20 %",
    )
    gc_grace_s: _Delay = Field(
        default=3600.0, description="seconds an unreferenced file is kept before gc removes it"
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = (
        Field(default="warning", description="debug, info, warning or error")
    )
    log_format: Annotated[Literal["text", "json"], BeforeValidator(_lower)] = Field(
        default="text", description="text, or json for one object a line"
    )
    output_dir: str | None = Field(
        default=None, description="a folder or URL for outputs, instead of one beside each source"
    )
    checkpoints_prefix: str = Field(
        default="checkpoints",
        pattern=r"^[\w.-]+(/[\w.-]+)*$",
        description="where in a bucket the workspaces of its sources lie",
    )
    store_patience_s: _Delay = Field(
        default=60.0, description="seconds that an object store may go without a usable answer"
    )
    cache_dir: Path = Field(
        default_factory=_cache_dir,
        description="a folder for downloaded models and working copies of what is in object stores",
    )
    scratch_max_bytes: Annotated[ByteSize, Field(gt=0)] | None = Field(
        default=None,
        description="how much of cache_dir copies of sources and inputs may take, such as 50GiB; "
        "unless set, half of what is free besides",
    )
    media_duration_s: Annotated[int, Field(gt=0)] = Field(
        default=24 * 3600, description="seconds that a media file may last; a longer one is refused"
    )
    media_memory_bytes: Annotated[ByteSize, Field(gt=0)] = Field(
        default=ByteSize(4 * 2**30), description="memory for reading a media file, such as 4GiB"
    )
    media_wall_s: _Duration = Field(
        default=60.0, description="seconds for opening a media file, before its length counts"
    )
    media_niceness: Annotated[int, Field(ge=0, le=19)] = Field(
        default=0, description="how far decoding and encoding step back for others, 0 to 19"
    )
    media_sandbox: Literal["best-effort", "require"] = Field(
        default="best-effort",
        description="whether media is read where Landlock or seccomp is missing: best-effort does, "
        "require refuses",
    )
    speech_device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="where speech models run: auto, cpu or cuda"
    )
    speech_precision: str = Field(
        default="auto",
        pattern=r"^(auto|int8|int8_float16|int8_float32|float16|bfloat16|float32)$",
        description="auto, int8, int8_float16, int8_float32, float16, bfloat16 or float32",
    )
    speech_threads: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="threads of one speech model; its share of the cores unless set"
    )
    speech_url: str | None = Field(
        default=None, description="where the http speech engine is, such as http://host:8000/v1"
    )
    speech_api_key: SecretStr | None = Field(
        default=None, description="the key that the http speech engine asks for"
    )
    model_hub_url: str = Field(
        default="https://huggingface.co",
        pattern=r"^https?://\S+$",
        description="where speech models are downloaded from: Hugging Face, or a mirror of it",
    )
    interruption_notices: Literal["auto", "imds", "off"] = Field(
        default="auto",
        description="auto: heed the notices of a spot machine on EC2; imds: everywhere; off: never",
    )
    imds_url: str | None = Field(
        default=None,
        pattern=r"^http://([\w.-]+|\[[\da-fA-F:.]+\])(:\d{1,5})?/?$",
        description="where notices are asked for, instead of http://169.254.169.254",
    )
    on_rebalance: Literal["warn", "drain"] = Field(
        default="warn", description="what to do when a spot machine is likely to end: warn or drain"
    )
    ledger: str | None = Field(
        default=None,
        description="a ledger for all jobs: postgresql://host/name, or the path of a SQLite file",
    )
    store: str | None = Field(
        default=None, description="a folder or URL for the files that a server is given"
    )
    data_dir: Path = Field(
        default=Path("intermission-data"),
        description="where a server without a ledger or a store of its own keeps them",
    )
    keep_jobs_s: Annotated[_Duration, BeforeValidator(seconds)] | None = Field(
        default=None,
        description="how long a server keeps ended jobs, such as 30d; for ever unless set",
    )
    server: str | None = Field(
        default=None,
        pattern=r"^https?://\S+$",
        description="the server that commands talk to, such as http://host:8400",
    )
    server_key: SecretStr | None = Field(
        default=None, description="the key that the server gave this worker"
    )
    admin_secret: SecretStr | None = Field(
        default=None, description="the secret that a server asks its clients for"
    )
    notifiers: Literal["auto", "database", "redis", "hybrid", "off"] = Field(
        default="auto",
        description="what wakes idle workers: auto, database, redis, hybrid (both) or off",
    )
    redis_url: str | None = Field(
        default=None,
        pattern=r"^(rediss?|valkeys?|unix)://\S+$",
        description="a Redis or Valkey server for notifiers and progress, such as redis://host:6379/0",
    )
    webhook_urls: Annotated[tuple[str, ...], BeforeValidator(split)] = Field(
        default=(), description="where a server sends alerts, such as https://host/hook"
    )
    webhook_secret: SecretStr | None = Field(
        default=None, description="what alerts are signed with: whsec_ and some base64"
    )
    webhook_kinds: Annotated[tuple[str, ...], BeforeValidator(split)] = Field(
        default=(
            *("task.recovered", "task.exhausted", "task.stuck"),
            *("failures.pattern", "queue.old", "disk.low"),
        ),
        description="which alerts are sent",
    )
    webhook_allow_private: Literal["yes", "no"] = Field(
        default="no", description="yes: alerts may go to addresses that are not public"
    )
    pipelines: Annotated[tuple[str, ...], BeforeValidator(split)] = Field(
        default=(),
        description="pipelines besides the installed ones: path/to/file.py, path/to/file.py:name "
        "or module:name",
    )
    watches: Annotated[tuple[WatchedPlace, ...], BeforeValidator(from_json)] = Field(
        default=(),
        description="places whose files a server submits, each a table with place and pipeline",
    )
    overrides: Annotated[tuple[Override, ...], BeforeValidator(from_json)] = Field(
        default=(),
        description="parameters for some sources, each a table with pipeline, sources and params",
    )
    workspace_name: str = Field(
        default=".intermission",
        pattern=r"^\.?\w[\w.-]*$",
        description="the name of the folder, beside a source, that holds its workspace",
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_booleans(cls, value: Any) -> Any:
        # Python counts True as 1, but nobody who writes `slots = true` means one slot.
        if isinstance(value, bool):
            raise ValueError("true and false mean nothing here")
        return value


_TABLES: dict[str, type[BaseModel]] = {"watches": WatchedPlace, "overrides": Override}
_current: Settings | None = None


def use(settings: Settings) -> None:
    """Make these the settings of this process: a slot works with those of its worker."""
    global _current
    _current = settings


def current() -> Settings:
    """The settings of this process, for code that nobody hands any, such as a step."""
    return load_settings({}).settings if _current is None else _current


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings and, by name, where each came from: a flag, a variable, a file, `default`."""

    settings: Settings
    origin: Mapping[str, str]


def load_settings(
    flags: Mapping[str, Any],
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Resolved:
    """Merge all sources. A flag that is None was not given; an empty variable is not set.

    Raises `UsageError` naming the source, the setting, what was expected and what was found.
    """
    environ = os.environ if environ is None else environ
    cwd = Path.cwd() if cwd is None else cwd
    values: dict[str, Any] = {}
    origin = dict.fromkeys(Settings.model_fields, "default")
    for source, name, value in _given(flags, environ, cwd):
        if name not in Settings.model_fields:
            raise _unknown(name, source)
        values[name] = value
        origin[name] = source
    try:
        settings = Settings.model_validate(values)
    except ValidationError as e:
        raise _wrong(e, values, origin) from e
    if settings.renew_every_s > settings.lease_ttl_s / 2:
        raise UsageError(
            f"renew_every_s ({origin['renew_every_s']}) is {settings.renew_every_s:g} s, more than "
            f"half of lease_ttl_s ({origin['lease_ttl_s']}), {settings.lease_ttl_s:g} s.",
            remedy="Renew more often, so that one lost renewal does not lose the lease.",
        )
    return Resolved(settings, origin)


def _given(
    flags: Mapping[str, Any], environ: Mapping[str, str], cwd: Path
) -> Iterator[tuple[str, str, Any]]:
    """Every value given anywhere as (origin, name, value), weakest source first."""
    for path in _files(environ, cwd):
        for name, value in _read(path).items():
            yield str(path), name, value
    for variable, value in environ.items():
        suffix = variable.removeprefix(PREFIX)
        if variable != suffix and value and not _FOREIGN.fullmatch(suffix):
            yield f"environment {variable}", suffix.lower(), value
    for name, value in flags.items():
        if value is not None:
            yield f"flag --{name.replace('_', '-')}", name, value


def _files(environ: Mapping[str, str], cwd: Path) -> Iterator[Path]:
    home = environ.get("HOME")
    config = environ.get("XDG_CONFIG_HOME") or (home and f"{home}/.config")
    candidates = [Path(config, "intermission", "config.toml")] if config else []
    project = (folder / PROJECT_FILE for folder in (cwd, *cwd.parents))
    nearest = next((path for path in project if path.is_file()), None)
    yield from (path for path in (*candidates, nearest) if path is not None and path.is_file())


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as e:
        raise UsageError(f"{path} is not TOML: {e}.", remedy="Correct it or remove it.") from e
    except OSError as e:
        raise EnvironmentFault(
            f"the settings in {path} cannot be read: {e.strerror}.",
            remedy="Make the file readable or remove it.",
        ) from e


def _unknown(name: str, source: str) -> UsageError:
    close = get_close_matches(name, Settings.model_fields, n=1)
    known = ", ".join(Settings.model_fields)
    return UsageError(
        f"{source}: there is no setting {name!r}.",
        remedy=f"Did you mean {close[0]}?" if close else f"The settings are: {known}.",
    )


def _wrong(
    error: ValidationError, values: Mapping[str, Any], origin: Mapping[str, str]
) -> UsageError:
    first = error.errors()[0]
    name = str(first["loc"][0])
    if name in _TABLES and len(first["loc"]) > 2:
        return wrong_table(_TABLES[name], name, first, origin[name])
    expected = Settings.model_fields[name].description
    return UsageError(
        f"{origin[name]}: {name} cannot be {values[name]!r}: {first['msg']}.",
        remedy=f"Expected: {expected}.",
    )
