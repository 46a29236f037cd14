"""An object server that misbehaves at every request of every call of the store.

Each call is made once undisturbed, to see what it returns, what it leaves and how many requests
it takes. Then each of those requests meets each fault. The call must return and leave the same,
or say clearly that it failed and leave what was there before or what it meant to leave.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from intermission.backends.store import retrying_client
from intermission.backends.store.objects import ObjectStore
from intermission.engine.receipt import commit, find, receipt_key, withdraw
from intermission.errors import (
    AlreadyExists,
    IntermissionError,
    SourceChanged,
    StoreError,
    StoreUnavailable,
)
from intermission.model import Receipt
from servers.fault_proxy import (
    CUT_BODY,
    LOST_REPLY,
    RESET,
    SLOW,
    Fault,
    FaultProxy,
    Request,
    answer,
)
from servers.seaweed import S3Server

SMALL = b'{"attempt": "1"}'
LARGE = random.Random(4).randbytes(300_000)
ONE_REQUEST_BYTES = 100_000

FAULTS: dict[str, Fault] = {
    "lost reply": LOST_REPLY,
    "reset": RESET,
    "cut body": CUT_BODY,
    "409": answer(409),
    "412": answer(412),
    "429": answer(429),
    "500": answer(500),
    "503": answer(503),
}


@dataclass(frozen=True)
class Call:
    """A call of the store: the objects before it, itself, and the objects after it."""

    before: dict[str, bytes]
    act: Callable[[ObjectStore, str, Path], object]  # the store, the version of `a`, a folder
    after: dict[str, bytes]


def _file(folder: Path, body: bytes) -> Path:
    path = folder / "file"
    path.write_bytes(body)
    return path


def _fetch(store: ObjectStore, version: str, folder: Path) -> bytes:
    sha256 = hashlib.sha256(LARGE).hexdigest()
    path = store.fetch("a", folder / "to", size_bytes=len(LARGE), sha256=sha256)
    return path.read_bytes()


def _refused(act: Callable[[], object]) -> str:
    with pytest.raises(AlreadyExists):
        act()
    return "refused"


ONE, BOTH = {"a": SMALL}, {"a": SMALL, "b/c": b""}
CALLS: dict[str, Call] = {
    "create": Call({}, lambda s, v, f: s.create("a", SMALL).size_bytes, ONE),
    "create a large file": Call(
        {}, lambda s, v, f: s.create("a", _file(f, LARGE)).size_bytes, {"a": LARGE}
    ),
    "create what is taken": Call(
        ONE, lambda s, v, f: _refused(lambda: s.create("a", b"other")), ONE
    ),
    "create the same again": Call(ONE, lambda s, v, f: _refused(lambda: s.create("a", SMALL)), ONE),
    "create a large file that is taken": Call(
        ONE, lambda s, v, f: _refused(lambda: s.create("a", _file(f, LARGE))), ONE
    ),
    "replace": Call(ONE, lambda s, v, f: s.replace("a", b"new").size_bytes, {"a": b"new"}),
    "replace by a large file": Call(
        ONE, lambda s, v, f: s.replace("a", _file(f, LARGE)).size_bytes, {"a": LARGE}
    ),
    "replace a version": Call(
        ONE, lambda s, v, f: s.replace("a", b"new", if_version=v).size_bytes, {"a": b"new"}
    ),
    "replace a version by a large file": Call(
        ONE, lambda s, v, f: s.replace("a", _file(f, LARGE), if_version=v).size_bytes, {"a": LARGE}
    ),
    "replace another version": Call(
        ONE, lambda s, v, f: _refused(lambda: s.replace("a", b"new", if_version="0" * 32)), ONE
    ),
    "read": Call(ONE, lambda s, v, f: s.read("a"), ONE),
    "fetch": Call({"a": LARGE}, _fetch, {"a": LARGE}),
    "fetch a version": Call(
        {"a": LARGE},
        lambda s, v, f: s.fetch_version("a", f / "to", version=v).read_bytes(),
        {"a": LARGE},
    ),
    "stat": Call(
        ONE, lambda s, v, f: (one := s.stat("a")) and (one.size_bytes, one.version == v), ONE
    ),
    "stat of nothing": Call({}, lambda s, v, f: s.stat("a"), {}),
    "list": Call(BOTH, lambda s, v, f: [one.key for one in s.list("")], BOTH),
    "move": Call(ONE, lambda s, v, f: s.move("a", "b"), {"b": SMALL}),
    "move again": Call({"b": SMALL}, lambda s, v, f: s.move("a", "b"), {"b": SMALL}),
    "delete": Call(BOTH, lambda s, v, f: s.delete("a"), {"b/c": b""}),
    "presign": Call(ONE, lambda s, v, f: s.presign("a", expires_s=60)[:7], ONE),
    "self_test": Call(ONE, lambda s, v, f: s.self_test(), ONE),
}


class Bench:
    """The server, a proxy before it, and a fresh prefix for every call made."""

    def __init__(self, s3: S3Server, proxy: FaultProxy, folder: Path) -> None:
        self._s3, self.proxy, self._folder = s3, proxy, folder
        self._bucket = ObjectStore(s3.root, options=s3.options)
        self._undisturbed: dict[str, tuple[object, int]] = {}

    def stores(
        self, *, patience_s: float = 20, timeout_s: float = 20
    ) -> tuple[ObjectStore, ObjectStore]:
        """A store that reaches the server directly, and one through the proxy."""
        url = self._s3.fresh_url()
        through = ObjectStore(
            url,
            options=self._s3.at(self.proxy.url),
            patience_s=patience_s,
            timeout_s=timeout_s,
            one_request_bytes=ONE_REQUEST_BYTES,
        )
        return ObjectStore(url, options=self._s3.options), through

    def folder(self) -> Path:
        """A new, empty one."""
        path = self._folder / os.urandom(8).hex()
        path.mkdir()
        return path

    def run(
        self, call: Call, fault: Fault | None, *, nth: int = 0, times: int = 1, **waits: float
    ) -> tuple[object, dict[str, bytes]]:
        """What a call returned or raised under a fault, and every object it left behind."""
        _, through = self.stores(**waits)
        root = through.uri.removeprefix(f"{self._s3.root}/") + "/"
        versions = {
            key: self._bucket.replace(root + key, body).version for key, body in call.before.items()
        }
        folder = self.folder()
        self.proxy.arm(fault, nth=nth, times=times)
        outcome: object
        try:
            outcome = call.act(through, versions.get("a", ""), folder)
        except IntermissionError as e:
            outcome = e
        self.proxy.disarm()
        assert not list(folder.glob(".*")), "half a download stayed behind"
        # Temporary objects count: to the store above the prefix they are like any other.
        left = [one.key for one in self._bucket.list(root)]
        return outcome, {key.removeprefix(root): self._bucket.read(key) for key in left}

    def undisturbed(self, name: str) -> tuple[object, int]:
        """What a call returns when nothing goes wrong, and how many requests it makes."""
        if name not in self._undisturbed:
            outcome, left = self.run(CALLS[name], None)
            assert left == CALLS[name].after
            self._undisturbed[name] = outcome, len(self.proxy.requests)
        return self._undisturbed[name]


@pytest.fixture(scope="module")
def bench(s3: S3Server, fault_proxy: FaultProxy, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(s3, fault_proxy, tmp_path_factory.mktemp("faults"))


@pytest.fixture(autouse=True)
def _short_delays(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(retrying_client, "_DELAY_FIRST_S", 0.002)
    yield
    bench.proxy.disarm()


# The self-test is made of calls that meet every fault by themselves.
PAIRS = [(n, f) for n in CALLS for f in FAULTS if n != "self_test" or f in ("lost reply", "412")]


@pytest.mark.parametrize(("name", "fault"), PAIRS)
def test_one_fault_at_any_request_does_no_harm(bench: Bench, name: str, fault: str) -> None:
    call = CALLS[name]
    expected, count = bench.undisturbed(name)
    assert count > 0 or name == "presign"
    for nth in range(count):
        outcome, left = bench.run(call, FAULTS[fault], nth=nth)
        if fault != "412":
            assert (outcome, left) == (expected, call.after), f"request {nth} of {count}"
        elif outcome != expected:
            # A condition that the server only claims to have failed: nothing may be believed.
            assert isinstance(outcome, (AlreadyExists, SourceChanged, StoreError)), outcome
            assert_nothing_lost(call, left)


def test_a_create_refused_for_nothing_is_made_after_all(bench: Bench) -> None:
    outcome, left = bench.run(CALLS["create"], answer(412), nth=0)
    assert (outcome, left) == (len(SMALL), ONE)


@pytest.mark.parametrize(
    "name", ["create", "create a large file", "replace a version", "fetch", "list", "delete"]
)
def test_an_answer_that_does_not_come_is_asked_for_again(bench: Bench, name: str) -> None:
    call = CALLS[name]
    expected, count = bench.undisturbed(name)
    for nth in range(count):
        outcome, left = bench.run(call, SLOW, nth=nth, timeout_s=0.5)
        assert (outcome, left) == (expected, call.after), f"request {nth} of {count}"


@pytest.mark.parametrize("fault", ["lost reply", "reset", "503"])
@pytest.mark.parametrize("name", [name for name in CALLS if name != "presign"])
def test_a_server_that_stays_away_is_unavailable(bench: Bench, name: str, fault: str) -> None:
    call = CALLS[name]
    _, count = bench.undisturbed(name)
    for nth in (0, count - 1):
        outcome, left = bench.run(call, FAULTS[fault], nth=nth, times=10_000, patience_s=0.03)
        if outcome is not None and not isinstance(outcome, IntermissionError):
            continue  # the last request was only a look back, or tidying up
        assert isinstance(outcome, StoreUnavailable), outcome
        assert outcome.exit_code == 75
        assert "progress is saved" in outcome.remedy
        kept = {key: body for key, body in left.items() if not key.startswith(".tmp/")}
        assert_nothing_lost(call, kept)


def assert_nothing_lost(call: Call, left: dict[str, bytes]) -> None:
    """Every object is whole or a name just taken; one that was only to be moved is somewhere."""
    known = [b"", *call.before.values(), *call.after.values(), b"first", b"second"]
    assert all(body in known for body in left.values())
    if call.before and call.after:
        assert any(body in left.values() for body in (*call.before.values(), *call.after.values()))


@pytest.mark.parametrize("bodies", [(b"one", b"two"), (b"same", b"same")])
def test_of_two_creators_whose_answers_are_lost_one_wins(
    bench: Bench, bodies: tuple[bytes, bytes]
) -> None:
    direct, through = bench.stores()
    for turn in range(5):
        key, barrier = f"receipt-{turn}", threading.Barrier(2)

        def create(
            body: bytes, key: str = key, barrier: threading.Barrier = barrier
        ) -> bytes | None:
            barrier.wait(timeout=30)
            try:
                through.create(key, body)
            except AlreadyExists:
                return None
            return body

        bench.proxy.arm(LOST_REPLY, times=2, matching=lambda request: request.method == "PUT")
        with ThreadPoolExecutor(2) as pool:
            won = [body for body in pool.map(create, bodies) if body is not None]
        assert len(won) == 1
        assert direct.read(key) == won[0]


def test_of_two_thieves_whose_answers_are_lost_one_wins(bench: Bench) -> None:
    direct, through = bench.stores()
    for turn in range(5):
        stale = direct.replace("lock", b"stale %d" % turn).version
        barrier = threading.Barrier(2)

        def steal(
            me: bytes, stale: str = stale, barrier: threading.Barrier = barrier
        ) -> bytes | None:
            barrier.wait(timeout=30)
            try:
                through.replace("lock", me, if_version=stale)
            except AlreadyExists:
                return None
            return me

        bench.proxy.arm(LOST_REPLY, times=2, matching=lambda request: request.method == "PUT")
        with ThreadPoolExecutor(2) as pool:
            won = [me for me in pool.map(steal, [b"thief 1", b"thief 2"]) if me is not None]
        assert len(won) == 1
        assert direct.read("lock") == won[0]


def test_a_broken_download_goes_on_where_it_stopped(bench: Bench) -> None:
    direct, through = bench.stores()
    body = LARGE * 10
    version = direct.create("a", body).version
    bench.proxy.arm(CUT_BODY, times=3, matching=lambda request: request.method == "GET")
    path = through.fetch_version("a", bench.folder() / "to", version=version)
    assert path.read_bytes() == body
    ranges = [request.range for request in bench.proxy.requests if request.method == "GET"]
    assert ranges[0] == ""
    starts = [int(one.removeprefix("bytes=").rstrip("-")) for one in ranges[1:]]
    assert starts == sorted(starts)
    assert starts[-1] > len(body) // 2


def test_a_listing_that_breaks_goes_on_where_it_stopped(bench: Bench) -> None:
    direct, through = bench.stores()
    keys = [f"many/{n:05}" for n in range(1100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: direct._bucket.put(direct._name(key), b""), keys))

    def is_second_page(request: Request) -> bool:
        return "continuation-token" in request.path

    bench.proxy.arm(RESET, matching=is_second_page)
    assert [one.key for one in through.list("many/")] == keys
    assert any("start-after" in request.path for request in bench.proxy.requests)


def test_a_late_withdrawal_takes_no_receipt_that_was_made_since(bench: Bench) -> None:
    """A process judges a receipt, and sleeps in front of its last request while others finish."""
    direct, through = bench.stores()
    unsound, sound = (
        Receipt("k", "hear", 1, attempt, fence, "1")
        for fence, attempt in enumerate(("00001-a", "00002-b"), start=1)
    )
    judged, key = unsound.to_json().encode(), receipt_key("hear", "k")
    for last in range(1, 10):
        direct.replace(key, judged)

        def finish_meanwhile(request: Request, at: int = last) -> bool:
            if len(bench.proxy.requests) == at:
                withdraw(direct, key, judged)
                assert commit(direct, sound) == (sound, True)
            return False

        bench.proxy.arm(matching=finish_meanwhile)
        withdraw(through, key, judged)
        if len(bench.proxy.requests) < last:
            assert find(direct, "hear", "k") is None  # nobody came in between
            return
        assert find(direct, "hear", "k") == sound
    raise AssertionError("a withdrawal is a handful of requests")
