"""What a connection to a ledger refuses, whatever statement asks for it."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from intermission.backends.ledger.sqlite import SqliteLedger
from intermission.backends.ledger.sqlite.connection import NETWORK_FILE_SYSTEMS, file_system_of
from intermission.model import TRANSITIONS, TaskState
from intermission.testing.jobs import line_job, submit


@pytest.mark.parametrize("state", sorted(set(TaskState) - TRANSITIONS[TaskState.PENDING]))
def test_a_transition_that_is_not_in_the_table_is_refused(tmp_path: Path, state: str) -> None:
    ledger = SqliteLedger(tmp_path / "ledger.sqlite")
    made = submit(ledger, line_job())
    change = "UPDATE tasks SET state = ? WHERE state = 'pending'"
    if state == TaskState.PENDING:
        ledger.database.connection.execute(change, (state,))  # no change at all
    else:
        with pytest.raises(apsw.ConstraintError, match="illegal task transition"):
            ledger.database.connection.execute(change, (state,))
    assert [row.state for row in ledger.tasks(made.key)].count(TaskState.PENDING) == 1
    ledger.close()


def test_so_is_one_of_a_job(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path / "ledger.sqlite")
    submit(ledger, line_job())
    ledger.database.connection.execute("UPDATE jobs SET state = 'done'")
    with pytest.raises(apsw.ConstraintError, match="illegal job transition"):
        ledger.database.connection.execute("UPDATE jobs SET state = 'draining'")
    ledger.close()


@pytest.mark.parametrize(
    ("mount", "written"),
    [("/mnt/vidéos", "/mnt/vidéos"), ("/mnt/two words", r"/mnt/two\040words")],
)
@pytest.mark.parametrize("kind", ["nfs4", "virtiofs", "fuse.gcsfuse", "fuse.blobfuse2"])
def test_a_network_file_system_is_found_at_any_mount_point(
    tmp_path: Path, mount: str, written: str, kind: str
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "22 1 8:1 / / rw - ext4 /dev/vda rw\n"
        f"99 22 0:50 / {written} rw,relatime shared:1 - {kind} somewhere rw\n"
    )
    assert file_system_of(Path(mount, "talks"), table) == kind
    assert file_system_of(Path("/mnt"), table) == "ext4"
    assert kind in NETWORK_FILE_SYSTEMS
