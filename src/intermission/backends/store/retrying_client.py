"""Calls to a remote object service: its client, what its failures mean, and how long to insist.

`Service` makes the client late, in the process that uses it, and refuses to work in a fork made
after that: the client's threads do not survive one, and a call would never return. `understand`
is the one place that reads the client's exceptions. Nothing here knows what a call does: whoever
makes one sees to it that it can be repeated.

The client's own retries serve only the parts of a large file. For anything else they would take
409 for "exists", and hide that a conditional write was sent more than once.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from intermission.errors import StoreError, StoreRefused, StoreUnavailable, UsageError

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

T = TypeVar("T")

_S3 = ("s3", "s3a")
SCHEMES = (*_S3, "gs", "az", "abfs", "abfss")

_CONNECT_S = 10
_REQUEST_MAX_S = 6 * 3600  # a stalled transfer ends by the read time-out, long before
_DELAY_FIRST_S = 0.1
_DELAY_MAX_S = 5.0
_PART_RETRIES = 4

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
# Where a client without credentials of its own asks for the machine's.
_METADATA = re.compile(r"//169\.254\.|//metadata\.google\.internal|/latest/(api/token|meta-data)")


class NoObject(StoreError):
    """There is no object of the name that was called for."""


class ConditionFailed(StoreError):
    """The condition of a call did not hold, or this very call made it untrue."""


class Failure(NamedTuple):
    """A failed call in the project's own words. One that is `StoreUnavailable` may pass."""

    kind: type[StoreError]
    said: str
    remedy: str = "Put that right and run the same command again."


class Service:
    """A bucket or container. Picklable, and safe to share between threads."""

    _started_in: ClassVar[int] = 0  # the process with the client's threads, which all share

    def __init__(
        self, url: str, options: Mapping[str, str], *, patience_s: float, timeout_s: float
    ) -> None:
        """`patience_s` is how long a call without progress is repeated, `timeout_s` one wait."""
        self.url = url
        self.scheme = url.partition(":")[0]
        self._options = dict(options)
        self._patience_s = patience_s
        self._timeout_s = timeout_s
        self._clients: dict[tuple[float, int], Client] = {}
        self._answered = False

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_clients": {}, "_answered": False}

    @property
    def lists_in_order(self) -> bool:
        """Whether listings come in the byte order of names, as the large services promise.

        Look-alikes and S3 directory buckets list in orders of their own.
        """
        return not self._endpoint() and not self.url.endswith("--x-s3")

    def client(self, *, timeout_s: float = 0, is_patient: bool = False) -> Client:
        """The client of this process. A patient one repeats single requests by itself.

        `timeout_s` is for a request that takes long to send: the wait for an answer begins
        with the first byte of the question.
        """
        if Service._started_in not in (0, os.getpid()):
            raise StoreError(
                f"expected to reach {self.url} from the process that called a remote store "
                f"first ({Service._started_in}), found its fork ({os.getpid()}).",
                remedy="Fork before the first call, or start a new program.",
            )
        wait_s = self._timeout_s
        while wait_s < timeout_s:
            wait_s *= 2  # in steps, so that there are few clients to keep
        key = wait_s, _PART_RETRIES if is_patient else 0
        if key not in self._clients:
            self._clients[key] = self._connect(*key)
        return self._clients[key]

    def _connect(self, timeout_s: float, retries: int) -> Client:
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        config, allow_http = self._config()
        Service._started_in = os.getpid()
        try:
            return from_url(  # type: ignore[call-overload]  # the scheme says which config it is
                self.url,
                config=config,
                client_options={
                    "allow_http": allow_http,
                    "connect_timeout": timedelta(seconds=min(_CONNECT_S, timeout_s)),
                    "read_timeout": timedelta(seconds=timeout_s),
                    "timeout": timedelta(seconds=_REQUEST_MAX_S),
                },
                retry_config={"max_retries": retries},
            )
        except (BaseError, ValueError) as e:
            raise UsageError(
                f"expected {self.url} and its settings to name a bucket, but {_first_line(e)}.",
                remedy="Check the URL and the AWS_, GOOGLE_ or AZURE_ variables.",
            ) from e

    def _config(self) -> tuple[Any, bool]:
        """Settings that neither the caller nor the environment gave, and whether HTTP is meant."""
        config: dict[str, Any] = dict(self._options)
        endpoint = self._endpoint()
        if self.scheme in _S3:
            # One object at a time is one plain request, which every look-alike understands.
            config.setdefault("disable_bulk_delete", True)
            if endpoint:
                config["endpoint"] = endpoint
                if not os.environ.get("AWS_REGION") and not os.environ.get("AWS_DEFAULT_REGION"):
                    config.setdefault("region", "us-east-1")
        return config, endpoint.startswith("http:")

    def _endpoint(self) -> str:
        """The address of a service that is not its inventor's; empty for the real one."""
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        if self.scheme not in _S3:
            names = ("AZURE_ENDPOINT",) if self.scheme != "gs" else ()
        given = self._options.get("endpoint", "")
        return given or next(filter(None, map(os.environ.get, names)), "")

    def call(
        self, doing: str, act: Callable[..., T], *args: object, client: Client | None = None
    ) -> T:
        """What `act` returns for the client and `args`, repeated while patience lasts.

        `act` raises what the client raises. Raises `NoObject` and `ConditionFailed`, which the
        caller has to answer, and else `StoreError`.
        """
        from obstore.exceptions import BaseError

        client = client or self.client()
        delay_s, since_s = _DELAY_FIRST_S, time.monotonic()
        while True:
            try:
                result = act(client, *args)
            except (BaseError, FileNotFoundError) as e:
                failure = self._understand(e)
                if failure.kind is not StoreUnavailable:
                    message = f"{doing} failed: {self.url} {failure.said}."
                    raise failure.kind(message, remedy=failure.remedy) from e
                wait_s = delay_s * random.uniform(0.5, 1.0)
                delay_s = min(delay_s * 2, _DELAY_MAX_S)
                if time.monotonic() + wait_s - since_s > self._patience_s:
                    raise StoreUnavailable(
                        f"{doing} failed: {self.url} gave no usable answer for "
                        f"{self._patience_s:g} s; the last was that it {failure.said}.",
                        remedy="Run the same command again when it answers; progress is saved.",
                    ) from e
                time.sleep(wait_s)
            else:
                self._answered = True
                return result

    def _understand(self, e: Exception) -> Failure:
        credentials = _CREDENTIALS[self.scheme]
        if not self._answered and _METADATA.search(_first_line(e)):
            return Failure(StoreRefused, "needs credentials, and none were found", credentials)
        return understand(e, credentials)


def understand(e: Exception, credentials: str) -> Failure:
    """What an exception of the client means. `credentials` is the remedy for having none."""
    text = str(e)
    status = int(found[1]) if (found := _STATUS.search(text)) else 0
    code = found[1] if (found := _CODE.search(text)) else ""
    detail = found[1].rstrip(".") if (found := _MESSAGE.search(text)) else ""
    said = f"answered {status} {code}".rstrip() + (f" ({detail})" if detail else "")
    if code in ("NoSuchBucket", "ContainerNotFound") or "bucket does not exist" in text:
        return Failure(StoreRefused, "does not exist", "Check its name, or create it.")
    if isinstance(e, FileNotFoundError) or status == 404:
        return Failure(NoObject, said)
    if status == 412 or code == "BlobAlreadyExists":
        return Failure(ConditionFailed, said)
    if status in (401, 403) or code in ("ExpiredToken", "InvalidToken"):
        return Failure(StoreRefused, f"denied access: it {said}", credentials)
    if status in (301, 307) or code in ("AuthorizationHeaderMalformed", "PermanentRedirect"):
        remedy = "Set AWS_REGION to the bucket's region."
        return Failure(StoreRefused, "is in another region", remedy)
    # 409 is said while another write of the same object is under way.
    if status in (408, 409, 429) or code == "RequestTimeout" or (status >= 500 and status != 501):
        return Failure(StoreUnavailable, said)
    if status:
        return Failure(StoreError, said)
    if any(sign in text for sign in ("HTTP error", "CompleteMultipart", "Got invalid")):
        return Failure(StoreUnavailable, _transport(text))
    return Failure(StoreError, f"could not be used: {_first_line(e)}")


def _transport(text: str) -> str:
    for sign, said in (
        ("tcp connect error", "could not be reached"),
        ("dns error", "could not be found by its name"),
        ("TimedOut", "did not answer in time"),
        ("Timeout", "did not answer in time"),
    ):
        if sign in text:
            return said
    return "broke the connection"


def _first_line(e: Exception) -> str:
    return str(e).partition("\n")[0].rstrip(". ")


_AWS = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to a user who may list, read and write "
    "there (`aws configure export-credentials --format env` prints them)."
)
_AZURE = "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or run `az login`."
_CREDENTIALS = {
    "s3": _AWS,
    "s3a": _AWS,
    "gs": "Set GOOGLE_APPLICATION_CREDENTIALS to a key file, or run `gcloud auth "
    "application-default login`.",
    "az": _AZURE,
    "abfs": _AZURE,
    "abfss": _AZURE,
}
