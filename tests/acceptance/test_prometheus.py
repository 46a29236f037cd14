"""The dashboard, asked by a real Prometheus that scrapes a real server: every panel answers."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import PIPELINES, Cli, until

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
CONFIG = """\
global: {{scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 1s}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: intermission
    static_configs: [{{targets: ["{target}"]}}]
"""
EMPTY = {
    "Tasks that failed for good, last hour",
    "Failures by step",
    "Workers that vanished: leases lost",
    "Compute lost to interruptions",
}
"""Panels that have nothing to show where nothing goes wrong."""


class Prometheus:
    """A server of its own in a folder, scraping one target."""

    def __init__(self, program: str, folder: Path, target: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        config = folder / "prometheus.yml"
        config.write_text(CONFIG.format(target=target, rules=MONITORING / "alerts.yml"))
        self.process = subprocess.Popen(
            [
                program,
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'prometheus'}",
                f"--web.listen-address={address}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._client = httpx.Client(base_url=f"http://{address}/api/v1", timeout=20)

    def query(self, expression: str) -> list[Any]:
        answer = self._client.get("/query", params={"query": expression}).json()
        assert answer["status"] == "success", (expression, answer)
        return answer["data"]["result"]

    def has(self, expression: str) -> bool:
        assert self.process.poll() is None, "Prometheus has ended"
        try:
            return bool(self.query(expression))
        except (httpx.TransportError, json.JSONDecodeError):
            return False  # it is still starting

    def rules(self) -> list[dict[str, Any]]:
        groups = self._client.get("/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def stop(self) -> None:
        self._client.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def scraped(cli: Cli, require: Callable[[str], str]) -> Iterator[Prometheus]:
    """Prometheus over a server that has been at work."""
    program = require("prometheus")
    server = cli.start("serve", "--port", "0", "--pipeline", f"{PIPELINES}:letters")
    assert server.stderr is not None
    listening = next(line for line in server.stderr if line.startswith("listening on "))
    prometheus = Prometheus(program, cli.folder, listening.split("//")[1].strip())
    try:
        until(lambda: prometheus.has('up{job="intermission"} == 1'))
        ledger = ("--ledger", "intermission-data/ledger.sqlite")
        cli("submit", f"{PIPELINES}:letters", cli.source("first.txt"), *ledger)
        worker = cli.start("worker", *ledger)
        until(lambda: prometheus.has('intermission_jobs{state="done"} == 1'))
        cli("submit", f"{PIPELINES}:letters", cli.source("second.txt", "ghijkl"), *ledger)
        until(lambda: prometheus.has('intermission_jobs{state="done"} == 2'))
        until(lambda: prometheus.has('increase(intermission_tasks_total{outcome="done"}[1m]) > 0'))
        until(lambda: prometheus.has("intermission_oldest_pending_seconds == 0"))
        worker.send_signal(signal.SIGTERM)
        yield prometheus
    finally:
        prometheus.stop()


@pytest.mark.slow
def test_every_panel_answers_and_every_rule_is_sound(scraped: Prometheus) -> None:
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    for panel in panels:
        for target in panel["targets"]:
            expression = target["expr"].replace("$pipeline", ".*")
            found = scraped.query(expression.replace("$__rate_interval", "1m"))
            assert bool(found) != (panel["title"] in EMPTY), panel["title"]
    until(lambda: all(rule["health"] != "unknown" for rule in scraped.rules()))
    rules = scraped.rules()
    assert len(rules) == 8
    firing = [rule["name"] for rule in rules if rule["state"] == "firing"]
    assert ({rule["health"] for rule in rules}, firing) == ({"ok"}, [])
