"""The `aws` fixture: S3, SQS, SNS and EventBridge of this test process's own, all in memory.

It takes any credentials and checks no signature, so the tests themselves call it without.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from servers import die_with_parent, free_port

_ACCOUNT = "000000000000"
_START_S = 30.0

ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}


class Aws:
    """What the tests ask of the server, as an administrator would."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._client = httpx.Client(base_url=endpoint, verify=False, timeout=30)

    @property
    def environment(self) -> dict[str, str]:
        """What a command needs to reach it."""
        return {**ENVIRONMENT, "AWS_ENDPOINT_URL": self.endpoint}

    def url_of(self, queue: str) -> str:
        return f"{self.endpoint}/{_ACCOUNT}/{queue}"

    def create_queue(self, name: str, **attributes: str) -> str:
        return self._sqs("CreateQueue", QueueName=name, Attributes=attributes)["QueueUrl"]

    def delete_queue(self, url: str) -> None:
        self._sqs("DeleteQueue", QueueUrl=url)

    def send(self, url: str, body: str) -> None:
        self._sqs("SendMessage", QueueUrl=url, MessageBody=body)

    def count(self, url: str) -> int:
        """The messages in a queue, those among them that somebody has received and not deleted."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self._sqs("GetQueueAttributes", QueueUrl=url, AttributeNames=names)["Attributes"]
        return sum(int(found[name]) for name in names)

    def arn_of(self, queue: str) -> str:
        return f"arn:aws:sqs:us-east-1:{_ACCOUNT}:{queue}"

    def create_bucket(self, name: str) -> str:
        self._client.put(f"/{name}").raise_for_status()
        return f"s3://{name}"

    def notify(self, bucket: str, *parts: str) -> None:
        """Have a bucket tell of its objects; a part is an element of its configuration."""
        body = f"<NotificationConfiguration>{''.join(parts)}</NotificationConfiguration>"
        self._client.put(f"/{bucket}?notification", content=body).raise_for_status()

    def notify_queue(self, bucket: str, queue: str, prefix: str = "") -> None:
        self.notify(bucket, _configuration("Queue", self.arn_of(queue), prefix))

    def notify_topic(self, bucket: str, queue: str) -> None:
        """By way of a topic that passes on to the queue."""
        made = self._form("sns", Action="CreateTopic", Name=f"{queue}-topic")
        topic = made.partition("<TopicArn>")[2].partition("<")[0]
        how = {"Protocol": "sqs", "Endpoint": self.arn_of(queue), "TopicArn": topic}
        self._form("sns", Action="Subscribe", **how)
        self.notify(bucket, _configuration("Topic", topic))

    def notify_eventbridge(self, bucket: str, queue: str) -> None:
        """By way of a rule of EventBridge."""
        pattern = json.dumps({"source": ["aws.s3"], "detail": {"bucket": {"name": [bucket]}}})
        self._json("AWSEvents.PutRule", Name=f"{queue}-rule", EventPattern=pattern)
        targets = [{"Id": "1", "Arn": self.arn_of(queue)}]
        self._json("AWSEvents.PutTargets", Rule=f"{queue}-rule", Targets=targets)
        self.notify(bucket, "<EventBridgeConfiguration/>")

    def delete_object(self, bucket: str, key: str) -> None:
        self._client.delete(f"/{bucket}/{key}").raise_for_status()

    def close(self) -> None:
        self._client.close()

    def _sqs(self, action: str, **asked: Any) -> dict[str, Any]:
        return self._json(f"AmazonSQS.{action}", **asked)

    def _json(self, target: str, **asked: Any) -> dict[str, Any]:
        headers = {"X-Amz-Target": target, "Content-Type": "application/x-amz-json-1.0"}
        answer = self._client.post("/", json=asked, headers=headers).raise_for_status()
        return answer.json() if answer.content else {}

    def _form(self, service: str, **asked: str) -> str:
        scope = f"Credential=test/20260101/us-east-1/{service}/aws4_request"
        headers = {"Authorization": f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=0"}
        return self._client.post("/", data=asked, headers=headers).raise_for_status().text


def _configuration(kind: str, arn: str, prefix: str = "") -> str:
    events = "<Event>s3:ObjectCreated:*</Event><Event>s3:ObjectRemoved:*</Event>"
    rule = f"<FilterRule><Name>prefix</Name><Value>{prefix}</Value></FilterRule>"
    only = f"<Filter><S3Key>{rule}</S3Key></Filter>" if prefix else ""
    return f"<{kind}Configuration><{kind}>{arn}</{kind}>{events}{only}</{kind}Configuration>"


@pytest.fixture(scope="session")
def aws(require: Callable[[str], str]) -> Iterator[Aws]:
    program = require("ministack")
    folder = Path(tempfile.mkdtemp(prefix="ministack-"))
    try:
        process, endpoint = _start(program, folder)
        server = Aws(endpoint)
        try:
            yield server
        finally:
            server.close()
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    finally:
        shutil.rmtree(folder)


def _start(program: str, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """A server that answers. Another process may take a port between choice and use: try again."""
    for _ in range(3):
        port = free_port()
        process = _spawn(program, folder, port)
        endpoint = f"http://127.0.0.1:{port}"
        deadline_s = time.monotonic() + _START_S
        while time.monotonic() < deadline_s and process.poll() is None:
            with suppress(httpx.HTTPError):
                httpx.get(f"{endpoint}/_ministack/health", verify=False).raise_for_status()
                return process, endpoint
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
        process.kill()
        process.wait()
    log = (folder / "log").read_text(errors="replace")
    pytest.fail(f"expected ministack to answer within {_START_S:g} s, found:\n{log[-3000:]}")


def _spawn(program: str, folder: Path, port: int) -> subprocess.Popen[bytes]:
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("AWS_")},
        "BIND_HOST": "127.0.0.1",  # else it listens everywhere
        "MINISTACK_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "SERVICES": "s3,sqs,sns,events",
        "IOT_MTLS_ENABLED": "0",
        "SFTP_ENABLED": "0",
        "HOME": str(folder),
        "TMPDIR": str(folder),
    }
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [program],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
