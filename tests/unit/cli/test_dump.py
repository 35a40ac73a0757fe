"""What `barnabas dump` shows of the saved state of a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from barnabas.cli.dump import lines_of
from barnabas.errors import RemoteProtocolError
from barnabas.runtime.files import FileDisk
from barnabas.storage.saved_state import LATEST_STATE, SYNCED_STATE
from tests.support.storage.batches import append, append_transactional, end_transaction, idempotent, open_log


def test_dump_shows_a_saved_state(tmp_path: Path) -> None:
    log = open_log(FileDisk(str(tmp_path)))
    append_transactional(log, 5, 0, 2)
    end_transaction(log, 5, commit=False)
    append(log, idempotent(4, 0), leader_epoch=3)
    log.save_state(synced=True)
    log.close()
    shown = list(lines_of(tmp_path / "t-0" / SYNCED_STATE, records=True))
    assert shown[0].startswith(f"end offset {log.log_end_offset} at byte {log.size_bytes} of segment 0")
    assert "epoch 3 from offset 3" in shown
    for expected in ("aborted producer 5 first 0 last 2", "producer 4 epoch", "producer 5 epoch"):
        assert any(line.startswith(expected) for line in shown)


def test_dump_shows_an_emptied_state_and_names_a_damaged_one(tmp_path: Path) -> None:
    (tmp_path / LATEST_STATE).write_bytes(b"")
    assert next(iter(lines_of(tmp_path / LATEST_STATE, records=True))).startswith("empty")
    (tmp_path / LATEST_STATE).write_bytes(b"BLS1" + bytes(100))
    with pytest.raises(RemoteProtocolError, match="torn or damaged"):
        list(lines_of(tmp_path / LATEST_STATE, records=True))
