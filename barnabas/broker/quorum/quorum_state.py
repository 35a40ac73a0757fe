"""The `quorum-state` file: what a voter must not forget, in Kafka's JSON.

Plain functions over a Disk. Version 0 is Kafka's with a static list of voters, version 1 (KIP-853) that of a directory whose
voters are in the log; a file keeps the version it has.

Invariants: the file is replaced durably before anything that it promises is done: an epoch is never led twice, a vote never
given twice. A missing file is epoch 0 without a vote. Follows KIP-595.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from barnabas.errors import BarnabasError
from barnabas.ports import Disk

__all__ = ["NO_NODE", "MalformedQuorumState", "QuorumState", "read_quorum_state", "write_quorum_state"]

NO_NODE: Final = -1
NO_DIRECTORY: Final = "A" * 22  # the nil id
QUORUM_STATE: Final = "quorum-state"


class MalformedQuorumState(BarnabasError):
    """The file is damaged: whom this voter voted for is not known, so it may not vote."""


@dataclass(frozen=True, slots=True)
class QuorumState:
    """Where this voter stands.

    leader_epoch: the highest epoch it knows of.
    leader_id: who leads in it, NO_NODE where that is not known.
    voted_id: whom it voted for in it, NO_NODE where it has not voted.
    voted_directory_id: the directory of the one voted for (version 1); 22 characters of base64.
    voters: the static voters (version 0).
    version: of the file, 0 or 1.
    """

    leader_epoch: int = 0
    leader_id: int = NO_NODE
    voted_id: int = NO_NODE
    voters: tuple[int, ...] = ()
    voted_directory_id: str = NO_DIRECTORY
    version: int = 0


def write_quorum_state(disk: Disk, directory: str, state: QuorumState) -> None:
    """Replaces the file, durably."""
    standing = {"leaderId": state.leader_id, "leaderEpoch": state.leader_epoch, "votedId": state.voted_id}
    data: dict[str, object]
    if state.version == 0:
        voters = [{"voterId": voter} for voter in state.voters]
        data = {"clusterId": "", **standing, "appliedOffset": 0, "currentVoters": voters, "data_version": 0}
    else:
        data = {**standing, "votedDirectoryId": state.voted_directory_id, "data_version": 1}
    disk.replace(f"{directory}/{QUORUM_STATE}", json.dumps(data, separators=(",", ":")).encode())


def read_quorum_state(disk: Disk, directory: str) -> QuorumState:
    """Reads the file.

    Raises:
        MalformedQuorumState: not JSON, a field is missing or of the wrong type, or another version.
    """
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
