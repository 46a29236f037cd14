"""What messages about a bucket say, in every form that they come in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from intermission.backends.events.s3_notifications import Created, NotUnderstood, read_message


def record(key: str, event: str = "ObjectCreated:Put", bucket: str = "media") -> dict[str, Any]:
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "awsRegion": "eu-central-1",
        "eventName": event,
        "s3": {
            "s3SchemaVersion": "1.0",
            "bucket": {"name": bucket, "arn": f"arn:aws:s3:::{bucket}"},
            "object": {"key": key, "size": 1024, "eTag": "d41d8cd9", "sequencer": "0055AED6DCD9"},
        },
    }


def bucket_form(*records: dict[str, Any]) -> str:
    return json.dumps({"Records": list(records)})


def eventbridge_form(key: str, kind: str = "Object Created") -> str:
    detail = {"version": "0", "bucket": {"name": "media"}, "object": {"key": key, "size": 5}}
    return json.dumps({"version": "0", "detail-type": kind, "source": "aws.s3", "detail": detail})


def topic_form(message: str, kind: str = "Notification") -> str:
    said = {"Type": kind, "TopicArn": "arn:aws:sns:eu-central-1:111122223333:t", "Message": message}
    return json.dumps(said)


def keys(body: str) -> list[str]:
    return [created.key for created in read_message(body)]


def test_the_bucket_itself_tells() -> None:
    body = bucket_form(record("in/a.mp4"), record("in/b.mp4", bucket="other"))
    assert read_message(body) == [Created("media", "in/a.mp4"), Created("other", "in/b.mp4")]


@pytest.mark.parametrize(
    "how", ["Put", "Post", "Copy", "CompleteMultipartUpload", "SomethingThatIsNewNextYear"]
)
def test_however_an_object_is_made(how: str) -> None:
    assert keys(bucket_form(record("a", f"ObjectCreated:{how}"))) == ["a"]
    assert keys(bucket_form(record("a", f"s3:ObjectCreated:{how}"))) == ["a"]


@pytest.mark.parametrize(
    ("written", "key"),
    [
        ("in/a+b.txt", "in/a b.txt"),
        ("in/a%2Bb.txt", "in/a+b.txt"),
        ("in%2Fa.txt", "in/a.txt"),
        ("in/100%25.txt", "in/100%.txt"),
        ("in/%C3%BC.txt", "in/ü.txt"),
        ("in/%252B.txt", "in/%2B.txt"),
    ],
)
def test_a_bucket_escapes_keys(written: str, key: str) -> None:
    assert keys(bucket_form(record(written))) == [key]
    assert keys(topic_form(bucket_form(record(written)))) == [key]


def test_eventbridge_does_not_escape_keys() -> None:
    assert keys(eventbridge_form("in/a+b 100%25.txt")) == ["in/a+b 100%25.txt"]
    assert keys(topic_form(eventbridge_form("in/a+b.txt"))) == ["in/a+b.txt"]


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "media"}),
        topic_form(json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent"})),
        bucket_form(record("a", "ObjectRemoved:Delete")),
        bucket_form(record("a", "LifecycleExpiration:Delete")),
        bucket_form(record("a", "ObjectTagging:Put")),
        bucket_form(),
        eventbridge_form("a", "Object Deleted"),
        eventbridge_form("a", "Object Restore Completed"),
    ],
)
def test_what_makes_no_object_is_understood_and_says_nothing(body: str) -> None:
    assert read_message(body) == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "not JSON"),
        ("hello", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "not a JSON object"),
        ("null", "not a JSON object"),
        ("{}", "no event of a bucket"),
        ('{"Records": 7}', "no event of a bucket"),
        ('{"Records": [7]}', "no eventName"),
        ('{"Records": [{"eventName": 7}]}', "eventName is not a text"),
        ('{"Records": [{"eventName": "ObjectCreated:Put"}]}', "no s3.object.key"),
        (bucket_form(record("a"), {"eventName": "ObjectCreated:Put", "s3": []}), "s3.object.key"),
        ('{"source": "aws.s3"}', "no detail-type"),
        ('{"source": "aws.s3", "detail-type": "Object Created"}', "no detail.object.key"),
        ('{"source": "aws.ec2", "detail-type": "Object Created"}', "no event of a bucket"),
        (topic_form("hello"), "not JSON"),
        ('{"Type": "Notification"}', "not JSON"),
        (topic_form("You have chosen", "SubscriptionConfirmation"), "confirmed"),
    ],
)
def test_anything_else_is_refused_with_a_reason(body: str, reason: str) -> None:
    with pytest.raises(NotUnderstood, match=reason):
        read_message(body)
