"""The files under deploy/spot: they parse, and they keep the promises of the page about them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest

from intermission.backends.interruption.imds import BUDGET_MAX_S
from intermission.errors import Interrupted
from intermission.settings import Settings

ROOT = Path(__file__).parents[2]
SPOT = ROOT / "deploy" / "spot"
UNIT = SPOT / "intermission-transcribe@.service"
SCRIPT = SPOT / "user-data.sh"
NOTICE_S = 120


def unit() -> ConfigParser:
    parser = ConfigParser(interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # names have capitals
    parser.read_string(UNIT.read_text())
    return parser


def document(name: str) -> dict[str, Any]:
    return json.loads((SPOT / name).read_text())


def test_an_interruption_starts_it_again_and_a_failure_does_not() -> None:
    service = unit()["Service"]
    assert service["Restart"] == "on-failure"
    assert service["RestartForceExitStatus"] == str(Interrupted.exit_code)
    assert service["RestartPreventExitStatus"].split() == ["1", "2", "3"]
    assert unit()["Unit"]["StartLimitIntervalSec"] == "0"


def test_a_stop_reaches_the_worker_alone_and_leaves_time_to_drain() -> None:
    service = unit()["Service"]
    assert (service["KillMode"], service["KillSignal"]) == ("mixed", "SIGTERM")
    timeout_s = int(service["TimeoutStopSec"])
    assert max(Settings().drain_s, BUDGET_MAX_S) < timeout_s < NOTICE_S


def test_systemd_takes_the_unit(require: Callable[[str], str], tmp_path: Path) -> None:
    analyze = require("systemd-analyze")
    installed = UNIT.read_text().replace("/opt/intermission/bin/", "/bin/true ")
    instance = tmp_path / UNIT.name.replace("@", "@videos")
    for path in (tmp_path / UNIT.name, instance):
        path.write_text(installed)
    command = [analyze, "verify", str(instance)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_script_is_a_script_and_installs_this_unit() -> None:
    subprocess.run(["bash", "-n", SCRIPT], check=True, timeout=30)
    script = SCRIPT.read_text()
    assert "\nset -euo pipefail\n" in script
    embedded = re.search(r"@\.service <<'EOF'\n(.*?)EOF\n", script, re.DOTALL)
    assert embedded is not None
    assert embedded[1] == UNIT.read_text()
    (started,) = re.findall(r"intermission-transcribe@(\w+)\.service", script.rpartition("EOF")[2])
    assert f"/etc/intermission/{started}.env <<EOF\nSOURCE=$SOURCE\n" in script


def test_the_unit_names_what_the_environment_file_has() -> None:
    assert "${SOURCE}" in unit()["Service"]["ExecStart"]


def test_the_script_has_no_secret() -> None:
    assert not re.search(r"secret_access|password|api_key", SCRIPT.read_text(), re.IGNORECASE)


def test_the_policy_allows_what_a_run_does_and_no_more() -> None:
    statements = {one["Sid"]: one for one in document("policy.json")["Statement"]}
    prefix = Settings().checkpoints_prefix
    assert statements["Work"]["Resource"] == [
        f"arn:aws:s3:::BUCKET/{prefix}/*",
        "arn:aws:s3:::BUCKET/transcripts/*",
    ]
    assert statements["ReadSources"]["Action"] == "s3:GetObject"
    allowed = json.dumps(statements)
    assert '"s3:*"' not in allowed
    assert '"*"' not in allowed


def test_the_group_is_spot_machines_of_several_kinds() -> None:
    group = document("auto-scaling-group.json")
    template = document("launch-template.json")
    mixed = group["MixedInstancesPolicy"]
    assert mixed["InstancesDistribution"]["OnDemandPercentageAboveBaseCapacity"] == 0
    assert len(mixed["LaunchTemplate"]["Overrides"]) > 3
    assert group["CapacityRebalance"] is True
    named = mixed["LaunchTemplate"]["LaunchTemplateSpecification"]["LaunchTemplateName"]
    assert named == template["LaunchTemplateName"]
    assert template["LaunchTemplateData"]["MetadataOptions"]["HttpTokens"] == "required"


@pytest.mark.parametrize("path", sorted(SPOT.iterdir()), ids=lambda path: path.name)
def test_the_page_names_every_file(path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "run-on-spot-machines.md").read_text()
    assert f"deploy/spot/{path.name}" in page
