"""An SQS queue: messages received by long poll, and deleted by whoever is done with them.

AWS's own library talks with the service and finds the credentials where AWS programs look for
them: the environment, a profile, or the role of the machine or container. It is loaded late. This
module owns what a refusal means. Nothing is repeated here, and no message is deleted unless told:
one that is not comes again, and after as many times as the queue allows it goes where the queue's
own policy sends it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from intermission.errors import EnvironmentFault, QueueError, UsageError

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

WAIT_S = 20
"""The longest that the service lets a call wait for a message."""
BATCH_MAX = 10
_ANSWER_S = 10

_REGION = re.compile(r"[a-z]{2}(-[a-z]+){1,2}-\d+")
_REFUSALS = re.compile(r"Denied|Token|Signature|Credential|Security|Authori|OptIn|KeyId")
_CREDENTIALS = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to a user, or give the machine a role, that "
    "may sqs:ReceiveMessage and sqs:DeleteMessage there."
)
_CHECK_URL = "Check the URL: `aws sqs get-queue-url --queue-name NAME` prints it."


@dataclass(frozen=True)
class Message:
    """A message, and the handle by which this receipt of it can be deleted."""

    id: str
    handle: str
    body: str


class SqsQueue:
    """A queue by its URL. One thread uses it, the same all along."""

    def __init__(self, url: str) -> None:
        """Raises `UsageError` for what is not the URL of a queue, `EnvironmentFault` without the
        package that reaches one.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or "/" not in parts.path[1:]:
            raise UsageError(
                f"expected the URL of an SQS queue, found {url!r}.",
                remedy="Write it as https://sqs.REGION.amazonaws.com/ACCOUNT/NAME.",
            )
        if find_spec("botocore") is None:
            raise EnvironmentFault(
                f"expected the package botocore, which reaches {url}, found it missing.",
                remedy="Install it: pip install 'intermission[sqs]'",
            )
        self.url = url
        self._endpoint = f"{parts.scheme}://{parts.netloc}"
        self._region = region_of(parts.hostname or "")
        self._client: Any = None

    def receive(self, wait_s: int = WAIT_S) -> list[Message]:
        """Up to ten messages; none when none came in `wait_s`. Raises `QueueError`."""
        answer = self._call(
            "receive_message", MaxNumberOfMessages=BATCH_MAX, WaitTimeSeconds=wait_s
        )
        try:
            return [
                Message(one["MessageId"], one["ReceiptHandle"], one["Body"])
                for one in answer.get("Messages", ())
            ]
        except KeyError as e:
            raise self._strange() from e

    def delete(self, messages: Sequence[Message]) -> None:
        """Delete up to ten messages. One that the service fails to delete comes again.

        Raises `QueueError`.
        """
        entries = [
            {"Id": str(number), "ReceiptHandle": message.handle}
            for number, message in enumerate(messages)
        ]
        self._call("delete_message_batch", Entries=entries)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _call(self, action: str, **asked: Any) -> dict[str, Any]:
        from botocore import exceptions, parsers

        try:
            if self._client is None:
                self._client = self._connect()
            answer = getattr(self._client, action)(QueueUrl=self.url, **asked)
        except exceptions.ClientError as e:
            raise self._refusal(e) from e
        except parsers.ResponseParserError as e:
            raise self._strange() from e
        except (
            exceptions.NoCredentialsError,
            exceptions.PartialCredentialsError,
            exceptions.CredentialRetrievalError,
            exceptions.ProfileNotFound,
        ) as e:
            raise QueueError(
                f"{self.url} needs credentials, and none were found.", remedy=_CREDENTIALS
            ) from e
        except (exceptions.ConnectTimeoutError, exceptions.ReadTimeoutError) as e:
            raise QueueError(f"{self.url} did not answer in time.", remedy=_CHECK_URL) from e
        except exceptions.BotoCoreError as e:
            said = str(e).rstrip(".")
            raise QueueError(f"{self.url} could not be reached: {said}.", remedy=_CHECK_URL) from e
        # To the library a proxy's page is an answer without messages.
        if "json" not in answer["ResponseMetadata"]["HTTPHeaders"].get("content-type", ""):
            raise self._strange()
        return answer

    def _connect(self) -> Any:
        from botocore.config import Config
        from botocore.session import get_session

        config = Config(
            connect_timeout=_ANSWER_S,
            read_timeout=WAIT_S + _ANSWER_S,
            retries={"total_max_attempts": 1},
        )
        return get_session().create_client(
            "sqs", region_name=self._region, endpoint_url=self._endpoint, config=config
        )

    def _refusal(self, error: ClientError) -> QueueError:
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        code, detail = error.response["Error"]["Code"], error.response["Error"]["Message"]
        said = f"answered {status} {code} ({str(detail).rstrip('.')})"
        if code in ("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"):
            return QueueError(f"{self.url} does not exist.", remedy=f"Create it. {_CHECK_URL}")
        if status in (401, 403) or _REFUSALS.search(code):
            return QueueError(f"{self.url} denied access: it {said}.", remedy=_CREDENTIALS)
        return QueueError(f"{self.url} {said}.", remedy=_CHECK_URL)

    def _strange(self) -> QueueError:
        return QueueError(
            f"{self.url} answered something that an SQS queue does not say.", remedy=_CHECK_URL
        )


def region_of(host: str) -> str:
    """The region that a request to a host is signed for: the host's, else the environment's."""
    named = (part for part in host.split(".") if _REGION.fullmatch(part))
    own = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return next(named, own or "us-east-1")
