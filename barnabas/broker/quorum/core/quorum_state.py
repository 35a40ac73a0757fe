"""The `quorum-state` file (KIP-595): a voter's durable epoch, leader and vote, in Kafka's JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from barnabas.errors import BarnabasError
from barnabas.ports import Disk

NO_NODE: Final = -1
NO_DIRECTORY: Final = "A" * 22  # the nil id
QUORUM_STATE: Final = "quorum-state"


class MalformedQuorumState(BarnabasError):
    """The file is damaged: this voter's vote is unknown, so it may not vote."""


@dataclass(frozen=True, slots=True)
class QuorumState:
    """A voter's epoch, leader and vote."""

    leader_epoch: int = 0  # the highest known epoch
    leader_id: int = NO_NODE  # of that epoch, NO_NODE if unknown
    voted_id: int = NO_NODE  # candidate of its vote in that epoch, NO_NODE without a vote
    voters: tuple[int, ...] = ()  # the static voters (version 0)
    voted_directory_id: str = NO_DIRECTORY  # of that candidate (version 1); 22 characters of base64
    # of the file: 0 with static voters, 1 (KIP-853) with the voters in the log; a file keeps its version
    version: int = 0


def write_quorum_state(disk: Disk, directory: str, state: QuorumState) -> None:
    """Replaces the file durably, before anything that it promises: no epoch is led twice, no vote given twice."""
    fields = {"leaderId": state.leader_id, "leaderEpoch": state.leader_epoch, "votedId": state.voted_id}
    data: dict[str, object]
    if state.version == 0:
        voters = [{"voterId": voter} for voter in state.voters]
        data = {"clusterId": "", **fields, "appliedOffset": 0, "currentVoters": voters, "data_version": 0}
    else:
        data = {**fields, "votedDirectoryId": state.voted_directory_id, "data_version": 1}
    disk.replace(f"{directory}/{QUORUM_STATE}", json.dumps(data, separators=(",", ":")).encode())


def read_quorum_state(disk: Disk, directory: str) -> QuorumState:
    """A missing file means epoch 0 without a vote. Raises MalformedQuorumState: not JSON, a missing or mistyped field, or another version."""
    path = f"{directory}/{QUORUM_STATE}"
    if not disk.exists(path):
        return QuorumState()
    try:
        data = json.loads(disk.read(path))
        version = data["data_version"]
        if version not in (0, 1):
            raise MalformedQuorumState(f"{path} has version {version}, only 0 and 1 are read")
        voters = tuple(int(voter["voterId"]) for voter in data.get("currentVoters") or ())
        return QuorumState(
            leader_epoch=int(data["leaderEpoch"]),
            leader_id=int(data["leaderId"]),
            voted_id=int(data["votedId"]),
            voters=voters,
            voted_directory_id=str(data.get("votedDirectoryId", NO_DIRECTORY)),
            version=version,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedQuorumState(f"{path} is damaged: {error!r}") from error
