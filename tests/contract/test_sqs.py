"""An SQS queue on a server: what is received, deleted, and said of one that cannot be used."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from uuid import uuid4

import httpx
import pytest

from intermission.backends.events.s3_notifications import Created, read_message
from intermission.backends.events.sqs import Message, SqsQueue, region_of
from intermission.backends.store.objects import ObjectStore
from intermission.errors import QueueError, UsageError
from servers.fault_proxy import RESET, FaultProxy, answer
from servers.ministack import ENVIRONMENT, Aws


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def name() -> str:
    return f"queue-{uuid4().hex[:12]}"


Open = Callable[[str], SqsQueue]


@pytest.fixture
def opened() -> Iterator[Open]:
    with ExitStack() as held:
        yield lambda url: held.enter_context(closing(SqsQueue(url)))


def receive_all(queue: SqsQueue, count: int) -> list[Message]:
    found: list[Message] = []
    while len(found) < count:
        found += queue.receive(2)
    return found


def test_a_message_stays_until_it_is_deleted(aws: Aws, name: str, opened: Open) -> None:
    url = aws.create_queue(name, VisibilityTimeout="0")
    queue = opened(url)
    assert queue.receive(0) == []
    aws.send(url, "Grüße")
    (first,) = queue.receive(0)
    (again,) = queue.receive(0)
    assert first.body == again.body == "Grüße"
    assert first.id == again.id
    queue.delete([again])
    assert queue.receive(0) == []
    assert aws.count(url) == 0


def test_many_are_received_and_deleted_ten_at_a_time(aws: Aws, name: str, opened: Open) -> None:
    url = aws.create_queue(name)
    for number in range(12):
        aws.send(url, str(number))
    queue = opened(url)
    first = queue.receive(0)
    assert len(first) == 10
    queue.delete(first)
    assert aws.count(url) == 2


def test_a_call_waits_for_a_message(aws: Aws, name: str, opened: Open) -> None:
    queue = opened(aws.create_queue(name))
    began_s = time.monotonic()
    assert queue.receive(1) == []
    assert time.monotonic() - began_s > 0.9


Notify = Callable[[Aws, str, str], None]


@pytest.mark.parametrize("notify", [Aws.notify_queue, Aws.notify_topic, Aws.notify_eventbridge])
def test_what_a_bucket_says_by_any_way_is_understood(
    aws: Aws, name: str, opened: Open, notify: Notify
) -> None:
    queue = opened(aws.create_queue(name))
    bucket = aws.create_bucket(f"{name}-bucket")
    notify(aws, f"{name}-bucket", name)
    for message in queue.receive(0):  # some say hello
        assert read_message(message.body) == []
        queue.delete([message])
    options = {
        "endpoint": aws.endpoint,
        "access_key_id": ENVIRONMENT["AWS_ACCESS_KEY_ID"],
        "secret_access_key": ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
    }
    store = ObjectStore(bucket, options=options)
    store.replace("in/a b+c 100% ü.txt", b"abcd")
    (message,) = receive_all(queue, 1)
    assert read_message(message.body) == [Created(f"{name}-bucket", "in/a b+c 100% ü.txt")]


def test_a_queue_that_is_not_there_is_told(aws: Aws, name: str, opened: Open) -> None:
    with pytest.raises(QueueError, match="does not exist") as caught:
        opened(aws.url_of(name)).receive(0)
    assert "Create it" in caught.value.remedy


def test_what_is_in_the_way_is_told(aws: Aws, name: str, opened: Open) -> None:
    path = httpx.URL(aws.create_queue(name)).path
    with FaultProxy(aws.endpoint.removeprefix("http://")).running() as proxy:
        queue = opened(f"{proxy.url}{path}")
        assert queue.receive(0) == []
        proxy.arm(answer(403))
        with pytest.raises(QueueError, match="denied access: it answered 403") as caught:
            queue.receive(0)
        assert "sqs:ReceiveMessage" in caught.value.remedy
        proxy.arm(answer(503))
        with pytest.raises(QueueError, match="answered 503"):
            queue.receive(0)
        proxy.arm(RESET)
        with pytest.raises(QueueError, match="could not be reached"):
            queue.receive(0)
        proxy.arm(answer(200))
        with pytest.raises(QueueError, match="an SQS queue does not say"):
            queue.receive(0)
        assert queue.receive(0) == [], "and then it goes on"
    with pytest.raises(QueueError, match="could not be reached"):
        opened(f"{proxy.url}{path}").receive(0)


def test_without_credentials_it_says_where_they_go(
    aws: Aws, name: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ENVIRONMENT:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    queue = opened(aws.create_queue(name))
    with pytest.raises(QueueError, match="needs credentials") as caught:
        queue.receive(0)
    assert "AWS_ACCESS_KEY_ID" in caught.value.remedy


def test_a_profile_that_is_not_there_has_no_credentials(
    aws: Aws, name: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(QueueError, match="needs credentials"):
        opened(aws.create_queue(name)).receive(0)


@pytest.mark.parametrize(
    "url", ["queue", "s3://bucket/queue", "https://host/queue", "https:///a/b"]
)
def test_what_is_no_queue_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="URL of an SQS queue"):
        SqsQueue(url)


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("sqs.eu-central-1.amazonaws.com", "eu-central-1"),
        ("sqs.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("us-west-2.queue.amazonaws.com", "us-west-2"),
        ("sqs.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("vpce-0ab-1cd-us-east-1a.sqs.us-east-2.vpce.amazonaws.com", "us-east-2"),
        ("127.0.0.1", "ap-south-1"),
        ("localhost", "ap-south-1"),
    ],
)
def test_a_request_is_signed_for_the_queues_region(
    host: str, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "ap-south-1")
    assert region_of(host) == region
