"""What a message about a bucket says: which objects were made.

Three forms are read: the bucket's own, the one of EventBridge, and either of them in the envelope
of an SNS topic. A message is only a hint, written by nobody knows whom: no word of it is trusted
beyond the names, and what cannot be read is refused whole.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus


@dataclass(frozen=True)
class Created:
    """An object that is said to have been made, or made anew."""

    bucket: str
    key: str


class NotUnderstood(ValueError):
    """A message is no event of a bucket."""


def read_message(body: str) -> list[Created]:
    """The objects that were made; none where the message tells of something else.

    Raises `NotUnderstood`.
    """
    said = _fields(body)
    if said.get("Type") == "Notification":  # as a topic passes it on
        said = _fields(said.get("Message"))
    if said.get("Event") == "s3:TestEvent":  # sent when somebody sets the notification up
        return []
    if said.get("source") == "aws.s3":
        return _from_eventbridge(said)
    if isinstance(said.get("Records"), list):
        return _from_bucket(said["Records"])
    if said.get("Type") == "SubscriptionConfirmation":
        raise NotUnderstood("an SNS topic asks for its subscription to be confirmed")
    raise NotUnderstood("it is no event of a bucket")


def _fields(text: Any) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except (ValueError, TypeError, RecursionError) as e:
        raise NotUnderstood("it is not JSON") from e
    if not isinstance(said, dict):
        raise NotUnderstood("it is not a JSON object")
    return said


def _from_bucket(records: list[Any]) -> list[Created]:
    found: list[Created] = []
    for record in records:
        # Look-alikes write the name as people do who set a notification up.
        name = _text(record, "eventName").removeprefix("s3:")
        if name.startswith("ObjectCreated:"):
            # A space is a plus sign here, and most other signs are escaped.
            key = unquote_plus(_text(record, "s3", "object", "key"))
            found.append(Created(_text(record, "s3", "bucket", "name"), key))
    return found


def _from_eventbridge(said: dict[str, Any]) -> list[Created]:
    if _text(said, "detail-type") != "Object Created":
        return []
    key = _text(said, "detail", "object", "key")  # as it is: nothing is escaped here
    return [Created(_text(said, "detail", "bucket", "name"), key)]


def _text(value: Any, *path: str) -> str:
    for name in path:
        if not isinstance(value, dict) or name not in value:
            raise NotUnderstood(f"it has no {'.'.join(path)}")
        value = value[name]
    if not isinstance(value, str):
        raise NotUnderstood(f"its {'.'.join(path)} is not a text")
    return value
