"""The files under deploy/monitoring: they load, and ask only for numbers that a server shows."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from intermission.services.alerts import KINDS
from intermission.services.metrics import Metrics
from intermission.testing.clock import FakeClock

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
RUNBOOK = (ROOT / "docs" / "how-to" / "runbook.md").read_text()

RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
EXPRESSIONS: dict[str, str] = {
    **{rule["alert"]: rule["expr"] for rule in RULES},
    **{
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in PANELS
        for target in panel["targets"]
    },
}

# What Prometheus adds to every series, and Kubernetes to most.
_SCRAPED = {"job", "instance", "pod"}


def exposed() -> dict[str, set[str]]:
    """By the name of a series, the labels it has besides those of the scrape."""
    found: dict[str, set[str]] = {}
    for collector in Metrics(FakeClock()).registry._collector_to_names:  # type: ignore[attr-defined]
        labels = set(collector._labelnames)  # type: ignore[attr-defined]
        for family in collector.collect():
            suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
            for suffix in suffixes.get(family.type, [""]):
                more = {"le"} if suffix == "_bucket" else set[str]()
                found[family.name + suffix] = labels | more
    return found


def headings() -> list[str]:
    return re.findall(r"^## (.+)$", RUNBOOK, re.MULTILINE)


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_there_is_something_to_check() -> None:
    assert len(RULES) >= 6
    assert len(PANELS) >= 8
    assert exposed()["intermission_tasks_total"] == {"pipeline", "step", "outcome"}


@pytest.mark.parametrize("name", sorted(EXPRESSIONS))
def test_every_series_and_every_label_is_exposed(name: str) -> None:
    expression = re.sub(r"#.*", "", EXPRESSIONS[name])
    known = exposed()
    series = set(re.findall(r"\bintermission_\w+", expression))
    assert series or name == "IntermissionServerDown"
    assert series <= known.keys()
    labels = set(re.findall(r"(\w+)\s*=~?", expression))
    for listed in re.findall(r"\b(?:by|without|on) \(([^)]*)\)", expression):
        labels |= set(listed.replace(",", " ").split())
    allowed = _SCRAPED.union(*(known[one] for one in series))
    assert labels <= allowed


@pytest.mark.parametrize("name", sorted(EXPRESSIONS))
def test_brackets_are_closed(name: str) -> None:
    expression = EXPRESSIONS[name]
    for opening, closing in ("()", "[]", "{}"):
        assert expression.count(opening) == expression.count(closing)
    assert expression.count('"') % 2 == 0


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_rule_says_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    notes = rule["annotations"]
    assert notes["summary"]
    assert notes["description"]
    page, _, part = notes["runbook"].partition("#")
    assert (ROOT / page).exists()
    assert part == anchor(rule["alert"])


def test_the_runbook_has_every_alert_and_no_other() -> None:
    assert sorted(headings()) == sorted([*KINDS, *(rule["alert"] for rule in RULES)])
    for section in re.split(r"^## ", RUNBOOK, flags=re.MULTILINE)[1:]:
        name = section.splitlines()[0]
        said = all(word in section for word in ("**Means**", "**Look**", "**Do**"))
        assert said or "The same as [" in section, name


def test_the_reference_has_every_kind() -> None:
    page = (ROOT / "docs" / "reference" / "alerts.md").read_text()
    rows = re.findall(r"^\| `([a-z]+\.[a-z]+)` \|", page.split("## A message")[0], re.M)
    assert sorted(rows) == sorted(KINDS)


def test_panels_have_their_own_place_and_a_source_that_can_be_chosen() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        assert panel["description"]
        for one in (panel, *panel["targets"]):
            assert one["datasource"]["uid"] == "${datasource}"
    variables = {one["name"] for one in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource", "pipeline"}
    for one, other in itertools.combinations([panel["gridPos"] for panel in PANELS], 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert apart or above
        assert one["x"] + one["w"] <= 24


@pytest.mark.parametrize("path", sorted(MONITORING.iterdir()), ids=lambda path: path.name)
def test_the_page_names_every_file(path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "get-alerts.md").read_text()
    assert f"deploy/monitoring/{path.name}" in page


def test_prometheus_takes_the_rules(require: Callable[[str], str]) -> None:
    argv = [require("promtool"), "check", "rules", str(MONITORING / "alerts.yml")]
    checked = subprocess.run(argv, capture_output=True, text=True, timeout=180, check=False)
    assert checked.returncode == 0, checked.stderr
    assert f"{len(RULES)} rules found" in checked.stdout


def test_every_rule_fires_when_it_should_and_not_otherwise(require: Callable[[str], str]) -> None:
    cases = Path(__file__).with_name("alert_rules.yml")
    argv = [require("promtool"), "test", "rules", str(cases)]
    checked = subprocess.run(argv, capture_output=True, text=True, timeout=180, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    expected = [
        case["alertname"]
        for one in yaml.safe_load(cases.read_text())["tests"]
        for case in one["alert_rule_test"]
        if case.get("exp_alerts")
    ]
    assert set(expected) == {rule["alert"] for rule in RULES}
