"""An SQS queue: messages received by long poll, and deleted by whoever is done with them.

Owns the talk with the service: the requests, their signatures and what its refusals mean. Nothing
is repeated here, and no message is deleted unless told: one that is not comes again, and after as
many times as the queue allows it goes where the queue's own policy sends it.

Credentials come from where AWS programs look for them: the environment, a profile, or the role of
the machine or container. The signatures are those of AWS's own library, which is loaded late.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from intermission.errors import EnvironmentFault, QueueError, UsageError

if TYPE_CHECKING:
    import httpx
    from awscrt.auth import AwsCredentialsProvider

WAIT_S = 20
"""The longest that the service lets a call wait for a message."""
BATCH_MAX = 10
_ANSWER_S = 10.0
_CREDENTIALS_S = 30.0

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
        packages that reach one.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or "/" not in parts.path[1:]:
            raise UsageError(
                f"expected the URL of an SQS queue, found {url!r}.",
                remedy="Write it as https://sqs.REGION.amazonaws.com/ACCOUNT/NAME.",
            )
        for package in ("awscrt", "httpx"):
            if find_spec(package) is None:
                raise EnvironmentFault(
                    f"expected the package {package}, which reaches {url}, found it missing.",
                    remedy="Install it: pip install 'intermission[sqs]'",
                )
        self.url = url
        self._endpoint = f"{parts.scheme}://{parts.netloc}/"
        self._host = parts.netloc
        self._region = region_of(parts.hostname or "")
        self._client: httpx.Client | None = None
        self._credentials: AwsCredentialsProvider | None = None

    def receive(self, wait_s: int = WAIT_S) -> list[Message]:
        """Up to ten messages; none when none came in `wait_s`. Raises `QueueError`."""
        asked = {"MaxNumberOfMessages": BATCH_MAX, "WaitTimeSeconds": wait_s}
        answer = self._call("ReceiveMessage", asked, answer_s=wait_s + _ANSWER_S)
        try:
            return [
                Message(one["MessageId"], one["ReceiptHandle"], one["Body"])
                for one in answer.get("Messages") or ()
            ]
        except (KeyError, TypeError) as e:
            raise self._strange() from e

    def delete(self, messages: Sequence[Message]) -> None:
        """Delete up to ten messages. One that the service fails to delete comes again.

        Raises `QueueError`.
        """
        entries = [
            {"Id": str(number), "ReceiptHandle": message.handle}
            for number, message in enumerate(messages)
        ]
        self._call("DeleteMessageBatch", {"Entries": entries}, answer_s=_ANSWER_S)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _call(self, action: str, asked: dict[str, Any], *, answer_s: float) -> dict[str, Any]:
        import httpx

        if self._client is None:
            # Certificates take long to load, and plain HTTP has none to verify.
            self._client = httpx.Client(verify=not self.url.startswith("http:"))
        body = json.dumps({"QueueUrl": self.url, **asked}).encode()
        headers = self._sign(action, body)
        limits = httpx.Timeout(_ANSWER_S, read=answer_s)
        try:
            answer = self._client.post(
                self._endpoint, content=body, headers=headers, timeout=limits
            )
        except httpx.TimeoutException as e:
            raise QueueError(f"{self.url} did not answer in time.", remedy=_CHECK_URL) from e
        except httpx.HTTPError as e:
            said = str(e).rstrip(".") or type(e).__name__
            raise QueueError(f"{self.url} could not be reached: {said}.", remedy=_CHECK_URL) from e
        if answer.status_code != 200:
            raise self._refusal(answer)
        return self._fields(answer)

    def _sign(self, action: str, body: bytes) -> dict[str, str]:
        from awscrt import auth, http
        from awscrt.exceptions import AwsCrtError

        if self._credentials is None:
            self._credentials = auth.AwsCredentialsProvider.new_default_chain()
        headers = {
            "Host": self._host,
            "Content-Type": "application/x-amz-json-1.0",
            "X-Amz-Target": f"AmazonSQS.{action}",
        }
        request = http.HttpRequest(
            "POST", "/", http.HttpHeaders(list(headers.items())), BytesIO(body)
        )
        how = auth.AwsSigningConfig(
            algorithm=auth.AwsSigningAlgorithm.V4,
            signature_type=auth.AwsSignatureType.HTTP_REQUEST_HEADERS,
            credentials_provider=self._credentials,
            region=self._region,
            service="sqs",
        )
        try:
            signed = auth.aws_sign_request(request, how).result(_CREDENTIALS_S)
        except (AwsCrtError, TimeoutError) as e:
            raise QueueError(
                f"{self.url} needs credentials, and none were found.", remedy=_CREDENTIALS
            ) from e
        return dict(signed.headers)

    def _fields(self, answer: httpx.Response) -> dict[str, Any]:
        try:
            fields = answer.json()
        except ValueError as e:
            raise self._strange() from e
        if not isinstance(fields, dict):
            raise self._strange()
        return fields

    def _refusal(self, answer: httpx.Response) -> QueueError:
        try:
            fields = self._fields(answer)
        except QueueError:  # a proxy's page, or that of another service
            fields = {}
        code = str(fields.get("__type", "")).rpartition("#")[2]
        detail = str(fields.get("message") or fields.get("Message") or "").rstrip(".")
        said = f"answered {answer.status_code} {code}".rstrip() + (f" ({detail})" if detail else "")
        if code in ("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"):
            return QueueError(f"{self.url} does not exist.", remedy=f"Create it. {_CHECK_URL}")
        if answer.status_code in (401, 403) or _REFUSALS.search(code):
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
