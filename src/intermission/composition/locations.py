"""Where sources are: files of this machine, or objects in a bucket; and where their parts go.

A source's workspace is in the same storage as the source: beside a file in a folder of its own,
in a bucket below a prefix of its own, with the source's whole key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path, PurePath, PurePosixPath
from typing import NamedTuple
from urllib.parse import quote, unquote

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.backends.source_files import identify
from intermission.backends.store.keys import is_key
from intermission.backends.store.local import LocalStore
from intermission.backends.store.objects import ObjectStore
from intermission.backends.store.retrying_client import SCHEMES
from intermission.composition.discovery import find_sources
from intermission.engine.workspace import Workspace
from intermission.errors import (
    AlreadyExists,
    EmptyPlace,
    LedgerError,
    NotFound,
    SourceChanged,
    SourceError,
    UsageError,
    fault_from_os,
)
from intermission.model import LOST_MAX, Source, identity
from intermission.ports.ledger import Ledger
from intermission.ports.store import Store
from intermission.scratch import Scratch, source_entry
from intermission.settings import Settings

LEDGER_NAME = "ledger.sqlite"
_OF_WORKSPACE = re.compile(
    rf"(?P<source>.+)/(?:{re.escape(LEDGER_NAME)}|jobs/[0-9a-f]{{40}}\.json)"
)
OBJECT_SCHEMES = SCHEMES
"""Of the URLs of objects."""


@dataclass(frozen=True, order=True)
class ObjectLocation:
    """An object in a bucket."""

    bucket: str
    """With its scheme: `s3://bucket`."""
    key: str
    version: str = field(default="", compare=False)
    """What a listing said of it, where it was found by one."""
    size_bytes: int = field(default=0, compare=False)
    """As listed, too."""

    def __str__(self) -> str:
        return f"{self.bucket}/{self.key}"

    @property
    def name(self) -> str:
        return PurePosixPath(self.key).name


Location = Path | ObjectLocation


def is_url(text: str) -> bool:
    return "://" in text


def as_location(text: str) -> Location:
    """What a person means by a path or a URL."""
    if not is_url(text):
        return Path(text).resolve()
    scheme, _, rest = text.partition("://")
    if scheme == "file":
        host, _, path = rest.partition("/")
        if host not in ("", "localhost"):
            raise UsageError(
                f"{text} names a file of another machine, {host}.",
                remedy="Write file:/// and an absolute path, with three slashes.",
            )
        return Path(unquote(f"/{path}")).resolve()
    bucket, _, key = rest.partition("/")
    return ObjectLocation(f"{scheme}://{bucket}", key)


def location_of(source: Source) -> Location:
    """Where a job's source is."""
    if source.uri.startswith("file:"):
        return source.path
    scheme, _, rest = source.uri.partition("://")
    bucket, _, key = rest.partition("/")
    return ObjectLocation(f"{scheme}://{bucket}", unquote(key))


def uri_of(place: Location) -> str:
    """What a source at this place has as its URI."""
    if isinstance(place, ObjectLocation):
        return f"{place.bucket}/{quote(place.key)}"
    return place.as_uri()


class FoundSources(NamedTuple):
    """What paths and URLs stand for."""

    sources: list[Location]
    skipped: int
    """How many files of folders were left out, because the pipeline does not take such files."""


def find_locations(
    given: Sequence[str],
    include: Sequence[str],
    settings: Settings,
    outputs: str,
    accepts: Sequence[str] = (),
) -> FoundSources:
    """The sources that these paths and URLs name, each once, in order.

    Of a folder or prefix, those that match a pattern of `include`, or else of `accepts`.
    """
    found: dict[Location, None] = {}
    skipped = 0
    for text in given:
        place = as_location(text)
        some: Sequence[Location]
        if isinstance(place, ObjectLocation):
            some = _find_objects(place, include, settings, outputs)
            is_folder = [one.key for one in some if isinstance(one, ObjectLocation)] != [place.key]
        else:
            name = settings.workspace_name
            local = text if not is_url(text) else str(place)
            some = find_sources([local], include=include, workspace_name=name)
            is_folder = place.is_dir()
        taken = some
        if is_folder and accepts and not include:
            taken = [one for one in some if is_accepted(one.name, accepts)]
        skipped += len(some) - len(taken)
        found.update(dict.fromkeys(taken))
    if not found:
        raise EmptyPlace(
            f"{', '.join(given)}: none of {skipped:,} files is of a kind that the pipeline takes.",
            remedy="Name a file, or take all with --include '*'.",
        )
    return FoundSources(list(found), skipped)


def is_accepted(name: str, accepts: Sequence[str]) -> bool:
    """Whether a file of this name is of a kind that a pipeline takes."""
    return not accepts or any(fnmatch(name.lower(), pattern) for pattern in accepts)


def _find_objects(
    place: ObjectLocation, include: Sequence[str], settings: Settings, outputs: str
) -> list[ObjectLocation]:
    store = _bucket(place, settings)
    whole = store.stat(place.key) if place.key and not place.key.endswith("/") else None
    if whole is not None:
        return [replace(place, version=whole.version, size_bytes=whole.size_bytes)]
    found = [
        ObjectLocation(place.bucket, stat.key, stat.version, stat.size_bytes)
        for stat in store.list(_prefix(place))
        if stat.size_bytes and _is_wanted(place, stat.key, include, settings, outputs)
    ]
    if not found:
        wanted = f" that matches {', '.join(include)}" if include else ""
        raise EmptyPlace(
            f"{place} has no object{wanted}.", remedy="Check the bucket and the prefix."
        )
    return found


def find_object(
    place: ObjectLocation, key: str, include: Sequence[str], settings: Settings, outputs: str
) -> ObjectLocation | None:
    """The object of this key in the place's bucket, if a listing of the place would find it now."""
    # A URL may name one object, whatever it is called.
    is_wanted = key == place.key or _is_wanted(place, key, include, settings, outputs)
    if not is_wanted or not is_key(key):
        return None
    stat = _bucket(place, settings).stat(key)
    if stat is None or not stat.size_bytes:
        return None
    return ObjectLocation(place.bucket, key, stat.version, stat.size_bytes)


def _prefix(place: ObjectLocation) -> str:
    return place.key if not place.key or place.key.endswith("/") else f"{place.key}/"


def _is_wanted(
    place: ObjectLocation, key: str, include: Sequence[str], settings: Settings, outputs: str
) -> bool:
    """Whether a key below a place can be a source: by its name, and because it is not our own."""
    prefix = _prefix(place)
    below = key.removeprefix(prefix)
    own = f"{settings.checkpoints_prefix}/", f"{outputs}/"
    if not key.startswith(prefix) or key.startswith(own):
        return False
    if any(part.startswith(".") for part in below.split("/")):
        return False
    names = below, PurePosixPath(below).name
    return not include or any(fnmatch(name, one) for one in include for name in names)


def _opener(url: str, settings: Settings) -> Callable[[], ObjectStore]:
    return partial(ObjectStore, url, patience_s=settings.store_patience_s)


def _bucket(place: ObjectLocation, settings: Settings) -> ObjectStore:
    return _opener(place.bucket, settings)()


def workspace_of(place: Location, settings: Settings, output: str | None) -> Workspace:
    """A source's workspace; `output` names the folder or prefix for what people are to find."""
    if isinstance(place, ObjectLocation):
        return _object_workspace(place, settings, output)
    folder = place.parent / settings.workspace_name / place.name
    temp = folder / ".tmp"
    return Workspace(
        folder=folder,
        open_store=partial(LocalStore, folder),
        open_outputs=partial(_open_outputs, place, settings, output, temp) if output else None,
        open_ledger=partial(open_ledger, folder / LEDGER_NAME, settings.lost_max),
    )


def _object_workspace(place: ObjectLocation, settings: Settings, output: str | None) -> Workspace:
    url = f"{place.bucket}/{settings.checkpoints_prefix}/{place.key}"
    # A name of its own on this machine, the same in every run, so that a lock is proven dead here.
    folder = settings.cache_dir.expanduser() / "workspaces" / identity(url)[:20] / place.name
    temp = folder / ".tmp"
    return Workspace(
        folder=folder,
        open_store=_opener(url, settings),
        open_outputs=partial(_open_outputs, place, settings, output, temp) if output else None,
        open_ledger=partial(open_ledger, folder / LEDGER_NAME, settings.lost_max),
        fetch_source=partial(_fetch_source, place, settings),
        check_source=partial(_check_source, place, settings),
        sign_source=partial(_sign_source, place, settings),
        is_remote=True,
        shared_scratch=scratch_of(settings),
    )


def _open_outputs(place: Location, settings: Settings, output: str, temp: Path) -> Store:
    """Where people find a source's outputs: under a name that no other source has there.

    The name is claimed when it is first asked for.
    """
    if settings.output_dir is not None:
        return _open_outputs_below(settings.output_dir, place, settings)
    if isinstance(place, Path):
        claims = LocalStore(place.parent / settings.workspace_name)
        name = _claimed_name(claims, f"outputs/{output}", place, place.name)
        return LocalStore(place.parent / output / name, temp=temp)
    path = PurePosixPath(place.key)
    claims = _opener(f"{place.bucket}/{settings.checkpoints_prefix}", settings)()
    name = _claimed_name(claims, f"outputs/{output}/{path.parent}", path, str(place))
    return _opener(f"{place.bucket}/{output / path.parent / name}", settings)()


def _open_outputs_below(base: str, place: Location, settings: Settings) -> Store:
    path = place if isinstance(place, Path) else PurePosixPath(place.key)
    if is_url(base):
        base = base.rstrip("/")
        claims: Store = _opener(f"{base}/{settings.workspace_name}", settings)()
        return _opener(f"{base}/{_claimed_name(claims, 'outputs', path, str(place))}", settings)()
    folder = Path(base).expanduser().resolve()
    claims = LocalStore(folder / settings.workspace_name)
    name = _claimed_name(claims, "outputs", path, str(place))
    # What is being written has to be on the same file system.
    return LocalStore(folder / name, temp=folder / settings.workspace_name / ".tmp")


def _claimed_name(claims: Store, prefix: str, source: PurePath, owner: str) -> str:
    """The source's stem, or its whole name where another source took the stem first."""
    names = (source.stem, source.name, f"{source.name}-{identity(owner)[:8]}")
    for name in names:
        key = str(PurePosixPath(prefix, name))
        try:  # mostly it was claimed before, and reading is soon done
            found = claims.read(key)
        except NotFound:
            try:
                claims.create(key, owner.encode())
                return name
            except AlreadyExists:
                found = claims.read(key)
        if found == owner.encode():
            return name
    raise UsageError(
        f"every name for the outputs of {source} is taken: {', '.join(names)}.",
        remedy="Give another --output-dir.",
    )


def identify_location(
    place: Location, memory: Store, settings: Settings, *, remember: bool = True
) -> Source:
    """The source a place has now. An object is told by its version, a file by its content."""
    if isinstance(place, Path):
        return identify(place, memory, remember=remember)
    stat = _bucket(place, settings).stat(place.key)
    if stat is None:
        raise SourceError(f"{place} does not exist.", remedy="Check the bucket and the key.")
    return listed_source(replace(place, version=stat.version, size_bytes=stat.size_bytes))


def listed_source(place: ObjectLocation) -> Source:
    """The source that an object was when it was listed."""
    fingerprint = identity("object", place.version, str(place.size_bytes))
    uri = f"{place.bucket}/{quote(place.key)}"
    return Source(uri, fingerprint, place.size_bytes, place.version)


def _fetch_source(place: ObjectLocation, settings: Settings, source: Source) -> Path:
    """The source as a file of this machine, downloaded once however many slots want it."""

    def fetch(to: Path) -> Path:
        return _bucket(place, settings).fetch_version(place.key, to, version=source.version)

    key = source_entry(source)
    return Scratch(scratch_of(settings)).file(key, place.name, source.size_bytes, fetch)


def _check_source(place: ObjectLocation, settings: Settings, source: Source) -> None:
    """As for a file: a copy of the old version must not pass for what is there now."""
    stat = _bucket(place, settings).stat(place.key)
    if stat is None or stat.version != source.version:
        raise SourceChanged(
            f"{place} is not the object this job was planned for.",
            remedy="Run the same command again: the new content is a new job.",
        )


def _sign_source(place: ObjectLocation, settings: Settings, source: Source, expires_s: int) -> str:
    return _bucket(place, settings).presign(place.key, expires_s=expires_s)


def scratch_of(settings: Settings) -> Path:
    """Where this machine keeps copies of what lies elsewhere; the bound is what settings say."""
    folder = settings.cache_dir.expanduser().resolve() / "scratch"
    Scratch(folder).limit(settings.scratch_max_bytes)
    return folder


def open_ledger(path: Path, lost_max: int = LOST_MAX) -> Ledger:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise fault_from_os(e, "making the workspace", LedgerError, where=path.parent) from e
    return SqliteLedger(path, lost_max=lost_max)


def find_object_workspaces(place: ObjectLocation, settings: Settings) -> Iterator[ObjectLocation]:
    """The sources at or below a place that have a workspace in their bucket.

    It has a ledger or, where the jobs are in a shared one, their records alone.
    """
    store = _bucket(place, settings)
    root = f"{settings.checkpoints_prefix}/"
    found: set[str] = set()
    for stat in store.list(root + place.key):
        match = _OF_WORKSPACE.fullmatch(stat.key.removeprefix(root))
        if match is not None and match["source"] not in found:
            found.add(match["source"])
            yield ObjectLocation(place.bucket, match["source"])
