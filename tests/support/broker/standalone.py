"""The metadata snapshot that Kafka's `StorageTool format --standalone` writes: its voter set."""

from __future__ import annotations

from pathlib import Path

from barnabas.broker.quorum.core.snapshots import decode_snapshot
from barnabas.broker.quorum.core.voters import VoterSet

GOLDEN = Path(__file__).parents[2] / "golden" / "metadata"
STANDALONE = (GOLDEN / "standalone-0-0.bin").read_bytes()


def kafkas_voters() -> VoterSet:
    voters = VoterSet()
    assert list(decode_snapshot(STANDALONE, voters.take)) == []
    return voters
