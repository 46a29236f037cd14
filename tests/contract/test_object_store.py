"""The store contract over an S3 server, and what only remote stores have to show."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from intermission.backends.store import objects, retrying_client
from intermission.backends.store.key_encoding import key_of, name_of
from intermission.backends.store.local import LocalStore
from intermission.backends.store.memory import MemoryStore
from intermission.backends.store.objects import ObjectStore
from intermission.backends.store.self_test import prove_if_version
from intermission.errors import (
    AlreadyExists,
    CorruptArtifact,
    EnvironmentFault,
    SourceChanged,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    UsageError,
)
from intermission.ports.store import Stat, Store
from intermission.testing.store import StoreContract
from servers.fault_proxy import FaultProxy, answer
from servers.heedless import Heedless
from servers.seaweed import S3Server

BODY = random.Random(5).randbytes(300_000)
SHA256 = hashlib.sha256(BODY).hexdigest()
KEYS = {"access_key_id": "tester", "secret_access_key": "secret"}


class TestObjectStore(StoreContract):
    WRITERS = 4  # the server makes racers for one name wait a second

    @pytest.fixture(autouse=True)
    def _on(self, s3: S3Server) -> None:
        self._s3 = s3

    def open_store(self, folder: Path) -> Store:
        return ObjectStore(self._s3.fresh_url(), options=self._s3.options)


@pytest.fixture
def store(s3: S3Server) -> ObjectStore:
    return ObjectStore(s3.fresh_url(), options=s3.options)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(BODY)
    return path


@pytest.mark.parametrize(("copies_bytes", "way"), [(10**9, "a copy"), (1000, "a claim")])
def test_a_file_in_parts_is_created_once(
    s3: S3Server, file: Path, copies_bytes: int, way: str
) -> None:
    store = ObjectStore(
        s3.fresh_url(), options=s3.options, one_request_bytes=1000, one_copy_bytes=copies_bytes
    )
    made = store.create("large", file)
    assert made == store.stat("large")
    assert made.size_bytes == len(BODY)
    assert store.read("large") == BODY
    with pytest.raises(AlreadyExists):
        store.create("large", file)
    assert _names(store) == ["large"], "nothing temporary stays behind"


def test_of_many_creators_of_a_large_file_one_wins(s3: S3Server, tmp_path: Path) -> None:
    store = ObjectStore(s3.fresh_url(), options=s3.options, one_request_bytes=1000)

    for n in range(4):
        Path(tmp_path, str(n)).write_bytes(b"%d" % n * 5000)
    for turn in range(5):

        def create(n: int, key: str = f"large-{turn}") -> int | None:
            try:
                store.create(key, tmp_path / str(n))
            except AlreadyExists:
                return None
            return n

        with ThreadPoolExecutor(4) as pool:
            won = [n for n in pool.map(create, range(4)) if n is not None]
        assert len(won) == 1
        assert store.read(f"large-{turn}") == b"%d" % won[0] * 5000
    assert _names(store) == [f"large-{turn}" for turn in range(5)]


def test_a_large_file_replaces_one_version_only(s3: S3Server, file: Path) -> None:
    store = ObjectStore(s3.fresh_url(), options=s3.options, one_request_bytes=1000)
    first = store.create("ledger", b"old").version
    second = store.replace("ledger", file, if_version=first)
    assert second == store.stat("ledger")
    assert store.read("ledger") == BODY
    with pytest.raises(AlreadyExists):
        store.replace("ledger", file, if_version=first)


def test_a_file_fetched_before_is_not_fetched_again(
    s3: S3Server, fault_proxy: FaultProxy, tmp_path: Path
) -> None:
    to = tmp_path / "to"
    store = ObjectStore(s3.fresh_url(), options=s3.at(fault_proxy.url))
    store.create("a", BODY)

    def downloads() -> int:
        fault_proxy.arm()
        path = store.fetch("a", to, size_bytes=len(BODY), sha256=SHA256)
        assert path.read_bytes() == BODY
        return sum(request.method == "GET" for request in fault_proxy.requests)

    assert downloads() == 1
    assert downloads() == 0
    to.write_bytes(BODY[:-1] + b"?")
    assert downloads() == 1, "the file had been altered"
    store.replace("a", BODY[:-1] + b"?")
    with pytest.raises(CorruptArtifact):
        downloads()


def test_many_may_fetch_one_file_at_once(store: ObjectStore, tmp_path: Path) -> None:
    store.create("a", BODY)

    def fetch(_: int) -> bytes:
        path = tmp_path / "scratch" / "a"
        return store.fetch("a", path, size_bytes=len(BODY), sha256=SHA256).read_bytes()

    with ThreadPoolExecutor(4) as pool:
        assert all(body == BODY for body in pool.map(fetch, range(8)))
    assert [path.name for path in (tmp_path / "scratch").iterdir()] == ["a"]


def test_a_source_is_read_in_the_version_it_was_planned_for(
    store: ObjectStore, tmp_path: Path
) -> None:
    version = store.create("talk.mp4", BODY).version
    path = store.fetch_version("talk.mp4", tmp_path / "to", version=version)
    assert path.read_bytes() == BODY
    store.replace("talk.mp4", b"another")
    with pytest.raises(SourceChanged, match="another version"):
        store.fetch_version("talk.mp4", tmp_path / "other", version=version)
    store.delete("talk.mp4")
    with pytest.raises(SourceChanged, match="removed"):
        store.fetch_version("talk.mp4", tmp_path / "other", version=version)
    assert [path.name for path in tmp_path.iterdir()] == ["to"]


def test_a_presigned_url_reads_the_object(store: ObjectStore) -> None:
    store.create("a b/ü?.json", BODY)
    with urllib.request.urlopen(store.presign("a b/ü?.json", expires_s=60)) as reply:
        assert reply.read() == BODY


def test_a_listing_in_order_is_read_only_as_far_as_needed(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ["ab/c", "ab/cd/e", "ab/d", "abc", "b/ab"]
    for key in keys:
        store.create(key, b"")
    monkeypatch.setattr(retrying_client.Service, "lists_in_order", True)
    for prefix in ("", "a", "ab", "ab/", "ab/c", "ab/cd/", "ab/cd/e", "abc", "x", "b/ab/"):
        assert [one.key for one in store.list(prefix)] == [k for k in keys if k.startswith(prefix)]


def test_the_self_test_sweeps_what_was_left_long_ago(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    temp = f"{store._root}.tmp/left"
    store._bucket.put(temp, b"half a file")
    store.self_test()
    assert _names(store) == [".tmp/left"]
    assert list(store.list("")) == []
    monkeypatch.setattr(objects, "_TEMP_KEPT_MS", -60_000)
    store.self_test()
    assert _names(store) == []


@pytest.mark.parametrize(
    ("heeds", "refusal"),
    [
        ({"if-match"}, "refuse a second create"),
        ({"if-none-match"}, "only while it has the version"),
        (set(), "refuse a second create"),
    ],
)
def test_a_server_that_ignores_conditions_is_refused(heeds: set[str], refusal: str) -> None:
    with Heedless(frozenset(heeds)).running() as server:
        store = ObjectStore("s3://bucket/p", options={**KEYS, "endpoint": server.url})
        with pytest.raises(StoreError, match=refusal) as caught:
            store.self_test()
        assert "honours If-" in caught.value.remedy
        assert server.objects == {}


def test_a_server_that_honours_conditions_is_taken() -> None:
    with Heedless(frozenset({"if-match", "if-none-match"})).running() as server:
        ObjectStore("s3://bucket", options={**KEYS, "endpoint": server.url}).self_test()
        assert server.objects == {}


class Unconditional(MemoryStore):
    """Ignores the version of a conditional replace."""

    def replace(self, key: str, data: bytes | Path, *, if_version: str | None = None) -> Stat:
        return super().replace(key, data)


def test_other_stores_prove_their_versions_too(tmp_path: Path) -> None:
    for store in (LocalStore(tmp_path), MemoryStore()):
        prove_if_version(store)
        assert list(store.list("")) == []
    with pytest.raises(StoreError, match="only while it has the version"):
        prove_if_version(Unconditional())


def test_denied_credentials_are_said_so(s3: S3Server) -> None:
    if not s3.options:
        pytest.skip("the credentials of another's server are not tried out")
    wrong = {**s3.options, "secret_access_key": "wrong"}
    store = ObjectStore(s3.fresh_url(), options=wrong)
    for act in (lambda: store.create("a", b""), lambda: store.stat("a"), lambda: [*store.list("")]):
        with pytest.raises(StoreRefused, match="denied access") as caught:
            act()
        assert "AWS_ACCESS_KEY_ID" in caught.value.remedy
        assert not caught.value.retryable


def test_a_missing_bucket_is_said_so(s3: S3Server, fault_proxy: FaultProxy) -> None:
    store = ObjectStore(s3.fresh_url(), options=s3.at(fault_proxy.url))
    for act in (store.self_test, lambda: store.read("a"), lambda: [*store.list("")]):
        fault_proxy.arm(answer(404, "NoSuchBucket"))
        with pytest.raises(StoreRefused, match="does not exist") as caught:
            act()
        assert "create it" in caught.value.remedy


def test_missing_credentials_are_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with Heedless(frozenset()).running() as server:
        nowhere = {"endpoint": server.url, "metadata_endpoint": "http://127.0.0.1:9"}
        store = ObjectStore("s3://bucket", options=nowhere)
        with pytest.raises(StoreRefused, match="needs credentials") as caught:
            store.stat("a")
    assert "AWS_ACCESS_KEY_ID" in caught.value.remedy


def test_a_server_that_is_not_there_is_unavailable() -> None:
    options = {**KEYS, "endpoint": "http://127.0.0.1:9"}
    store = ObjectStore("s3://bucket", options=options, patience_s=0.2)
    with pytest.raises(StoreUnavailable, match="could not be reached") as caught:
        store.stat("a")
    assert (caught.value.exit_code, caught.value.retryable) == (75, True)


def test_the_environment_says_where_the_server_is(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    if s3.options:
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.options["access_key_id"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.options["secret_access_key"])
    store = ObjectStore(s3.fresh_url())
    store.create("a", b"1")
    assert store.read("a") == b"1"


@pytest.mark.parametrize("url", ["bucket", "ftp://bucket/a", "s3://", "s3:///a", "s3://b/a/../b"])
def test_what_names_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        ObjectStore(url)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("url", "options", "host"),
    [
        ("s3://bucket/p", KEYS, "https://s3.us-east-1.amazonaws.com/bucket/p/a"),
        (
            "az://box/p",
            {"account_name": "mine", "account_key": "a2V5"},
            "https://mine.blob.core.windows.net/box/p/a",
        ),
        (
            "abfss://box@mine.dfs.core.windows.net/p",
            {"account_key": "a2V5"},
            "https://mine.blob.core.windows.net/box/p/a",
        ),
    ],
)
def test_every_cloud_is_reached_by_its_url(
    url: str, options: dict[str, str], host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_"))]:
        monkeypatch.delenv(name)
    store = ObjectStore(url, options=options)
    assert store.presign("a", expires_s=60).startswith(f"{host}?")
    assert store.uri == url


def test_a_store_travels_to_another_process(store: ObjectStore) -> None:
    store.create("a", b"1")
    copy = pickle.loads(pickle.dumps(store))
    assert (copy.uri, copy.read("a")) == (store.uri, b"1")


def test_a_fork_made_too_late_is_told_so(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("a", b"1")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(StoreError, match="found its fork"):
        store.read("a")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "intermission.backends.store.bucket", raising=False)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(EnvironmentFault, match="obstore") as caught:
        ObjectStore("s3://bucket")
    assert "intermission[cloud]" in caught.value.remedy


def test_every_key_has_a_name_of_its_own_and_comes_back() -> None:
    assert name_of("videos/100%.mp4") == "videos/100%.mp4"
    assert name_of("a\nb") == "a%0Ab"
    dice = random.Random(6)
    keys = {"".join(dice.choices("%250AF7\n\x7fé/", k=dice.randint(1, 12))) for _ in range(20_000)}
    names = {name_of(key) for key in keys}
    assert len(names) == len(keys)
    for key in keys:
        assert key_of(name_of(key)) == key
        assert name_of(key_of(key)) == key or "\n" in key or "\x7f" in key


def _names(store: ObjectStore) -> list[str]:
    """Every object below the prefix, temporary ones too."""
    return [one.key.removeprefix(store._root) for one in store._bucket.list(store._root)]
