"""A whole worker in Python's standard library: it runs the steps of examples/wordcount.py.

INTERMISSION_SERVER=http://host:8400 INTERMISSION_SERVER_KEY=imw_... python examples/tiny_worker.py

It claims a task, and a child process runs the function that has its step's name, uploads the files
and ends the task. Meanwhile it renews the lease, and kills the child when the lease is lost or the
job is cancelled. docs/reference/worker-api.md describes the calls.
"""

import hashlib
import json
import multiprocessing
import os
import re
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from urllib.parse import quote

SERVER = os.environ["INTERMISSION_SERVER"].rstrip("/")
KEY = os.environ["INTERMISSION_SERVER_KEY"]
HOST = os.uname().nodename
PROCESS = f"tiny-{HOST}-{os.getpid()}"
FORK = multiprocessing.get_context("fork")
WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")


def request(method, path, body=None, lease=None, **headers):
    """The bytes that the server answers; asked again while it is away."""
    headers |= {"Authorization": f"Bearer {KEY}"}
    if lease is not None:
        headers["Intermission-Lease"] = lease
    while True:
        asked = urllib.request.Request(SERVER + path, body, headers, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return answer.read()
        except urllib.error.HTTPError as e:
            if e.code not in (408, 425, 429, 500, 502, 503, 504):
                raise SystemExit(f"{method} {path}: {e.code} {e.read().decode()}") from e
        except OSError:
            pass  # the server is away; leases outlive it for a while
        time.sleep(1)


def call(name, **body):
    """One of the calls whose request and answer are JSON."""
    path = f"/api/v1/worker/{name}"
    return json.loads(request("POST", path, json.dumps(body).encode()))


class Task:
    """A leased task: its inputs, and the files that it makes."""

    def __init__(self, lease):
        self.lease, self.files = lease, []

    def text(self):
        """The source."""
        url = self.lease["source"]["url"]
        return request("GET", url, lease=self.lease["token"]).decode()

    def inputs(self, param):
        """The results of a step above, in chunk order."""
        page = self.lease["inputs"][param]
        found = list(page["outputs"])
        while page["next"] is not None:
            path = f"/api/v1/worker/inputs?input={quote(param)}&after={page['next']}"
            page = json.loads(request("GET", path, lease=self.lease["token"]))
            found += page["outputs"]
        return [json.loads(one["result"]) for one in found]

    def write(self, name, body):
        """Add a file to this attempt; the name, which is what a result says of a file."""
        path = f"/api/v1/worker/artifacts/{quote(name)}"
        headers = {"X-Content-SHA256": hashlib.sha256(body).hexdigest()}
        self.files.append(json.loads(request("PUT", path, body, self.lease["token"], **headers)))
        return name


def ranges(task):
    total, every = len(task.text().splitlines()), task.lease["params"]["every"]
    return [{"start": n, "stop": min(n + every, total)} for n in range(0, total, every)]


def count(task):
    chunk = task.lease["chunk"]
    lines = task.text().splitlines()[chunk["start"] : chunk["stop"]]
    return Counter(word for line in lines for word in WORD.findall(line.lower()))


def total(task):
    words = Counter()
    for part in task.inputs("count"):
        words.update(part)
    ranked = sorted(words.items(), key=lambda pair: (-pair[1], pair[0]))
    text = json.dumps(dict(ranked), indent=1, ensure_ascii=False) + "\n"
    return task.write("counts.json", text.encode())


STEPS = {("wordcount", step.__name__): step for step in (ranges, count, total)}


def run(lease):
    """Run one task to its end. This is a process of its own, so that it can be killed."""
    task = Task(lease)
    try:
        result = json.dumps(STEPS[lease["pipeline"], lease["step"]](task))
        if len(result.encode()) > lease["result_max_bytes"]:
            task.write("result.json", result.encode())
            result = ""
    except Exception as e:
        failed = {"lease": lease["token"], "error": type(e).__name__, "message": str(e)}
        call("fail", failed=[failed])
        return
    done = {"lease": lease["token"], "result": result, "files": task.files}
    (end,) = call("complete", done=[done])["ends"]
    said = "done" if end["accepted"] else end["problem"] or "lost"
    sys.stdout.write(f"{lease['step']} {lease['index']} {said}\n")


def work():
    """Claim, run and renew until nobody wants this worker any more."""
    while True:
        answer = call("claim", process=PROCESS, host=HOST, room=1, runs=sys.argv[1:] or None)
        for lease in answer["leases"]:
            if (lease["pipeline"], lease["step"]) not in STEPS:
                call("release", leases=[lease["token"]], reason="no-pipeline", host=HOST)
                continue
            child = FORK.Process(target=run, args=[lease], daemon=True)
            child.start()
            child.join(min(1, lease["lease_s"] / 4))
            while child.is_alive():
                renewed = call("renew", process=PROCESS, leases=[{"lease": lease["token"]}])
                if lease["task"] in renewed["lost"] + renewed["cancelled"]:
                    child.kill()
                child.join(min(1, lease["lease_s"] / 4))
            if child.exitcode:
                failed = {"lease": lease["token"], "error": "SlotDied", "message": "killed"}
                failed["reason"] = "crashed"
                call("fail", failed=[failed])
        if not answer["leases"] and not answer["again"]:
            time.sleep(1)


if __name__ == "__main__":
    work()
