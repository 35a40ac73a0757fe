"""Voters of the metadata quorum: static voters, or the voter set in the log (KIP-853).
A directory that Kafka formatted with `--standalone` has kraft.version 1 and a voter set in its log; one formatted for
controller.quorum.voters has neither. The node keeps either; it upgrades nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from barnabas.broker.quorum.core.quorum_state import QuorumState
from barnabas.errors import BarnabasError, RemoteProtocolError
from barnabas.ports import Buffer
from barnabas.protocol.messages.internal import KRaftVersionRecord, LeaderChangeMessage
from barnabas.protocol.records import (
    CONTROL_KRAFT_VERSION,
    CONTROL_KRAFT_VOTERS,
    CONTROL_LEADER_CHANGE,
    decode_records,
    iter_batches,
    read_control,
)
from barnabas.protocol.schema import RecordMessage, Struct, decode, field
from barnabas.protocol.wire import Array, Int16, Int32, String, UInt16, Uuid

KRAFT_VERSION_MAX: Final = 1


class NotTheSoleVoter(BarnabasError):
    """The quorum has other voters, or an unknown kraft.version: leading without the others could make two leaders."""


class VotersDisagree(BarnabasError):
    """Two nodes have different voter lists: two disjoint majorities would be possible."""


class VoterEndpoint(Struct):
    """An endpoint of a voter for the quorum."""

    name: str = field(String)
    host: str = field(String)
    port: int = field(UInt16)


class KRaftVersionFeature(Struct):
    """Levels of kraft.version that a voter supports."""

    min_supported_version: int = field(Int16)
    max_supported_version: int = field(Int16)


class VotersRecordVoter(Struct):
    """One voter of the set."""

    voter_id: int = field(Int32)
    voter_directory_id: bytes = field(Uuid)
    endpoints: list[VoterEndpoint] = field(Array(VoterEndpoint))
    k_raft_version_feature: KRaftVersionFeature = field(KRaftVersionFeature)


class VotersRecord(RecordMessage, versions=(0, 0), flexible_since=0):
    """The whole voter set, as a control record."""

    version: int = field(Int16)
    voters: list[VotersRecordVoter] = field(Array(VotersRecordVoter))


def _shown(voters: Sequence[int]) -> str:
    return ", ".join(map(str, voters))


class VoterSet:
    """The voters in the log."""

    def __init__(self) -> None:
        self.kraft_version = 0  # 0 static voters, 1 the voters of the log
        self.voters: tuple[int, ...] = ()  # ids of the log's voter set; empty if it has none
        self._values: dict[int, bytes] = {}  # by control type, byte for byte

    def take(self, kind: int, value: bytes) -> None:
        """Ignores control records of other types. Raises RemoteProtocolError for a malformed one."""
        if kind == CONTROL_KRAFT_VERSION:
            self.kraft_version = decode(KRaftVersionRecord, value, 0).kraft_version
        elif kind == CONTROL_KRAFT_VOTERS:
            self.voters = tuple(voter.voter_id for voter in decode(VotersRecord, value, 0).voters)
        else:
            return
        self._values[kind] = value

    def control_records(self) -> list[tuple[int, bytes]]:
        """Control records of a snapshot after its header: (control type, value)."""
        return sorted(self._values.items())

    def check(self, node_id: int, state: QuorumState, voters: tuple[int, ...], *, directory: str = "") -> None:
        """Checks that this directory may belong to a member of the quorum of `voters`, ids ascending.

        Raises:
            NotTheSoleVoter: kraft.version is unknown, or the log holds a voter set other than this node alone.
            VotersDisagree: quorum-state names other voters than the configuration.
        """
        if self.kraft_version > KRAFT_VERSION_MAX:
            raise NotTheSoleVoter(
                f"kraft.version is finalized at {self.kraft_version}, known here are 0 to {KRAFT_VERSION_MAX}"
            )
        if self.voters and (self.voters != (node_id,) or voters != (node_id,)):
            raise NotTheSoleVoter(
                f"the metadata log holds the voters {_shown(self.voters)}, controller.quorum.voters names "
                f"{_shown(voters)}: a set of voters in the log (kraft.version 1) is served only where it is this node alone"
            )
        where = f" in {directory}" if directory else ""
        if node_id in voters and state.voters and tuple(sorted(state.voters)) != voters:
            raise VotersDisagree(
                f"quorum-state{where} names the voters {_shown(state.voters)}, controller.quorum.voters {_shown(voters)}: "
                f"give node {node_id} the list that its cluster was made with"
            )


def check_elected(batches: Buffer, epoch: int, voters: Sequence[int], high_watermark: int) -> None:
    """Checks that the leader of `epoch` was elected by the voters that this node knows, from whole `batches` that it sent.

    If the lists of two nodes differ, one is wrong, and it must not stop the other. Once the election is committed by the leader's
    `high_watermark`, a majority of its voters has agreed to its list: this node stops. Before, or if the leader votes alone, it does not
    follow.

    Raises:
        VotersDisagree: its LeaderChange record names other voters, and is committed.
        RemoteProtocolError: it names other voters, and is not committed; a control batch is malformed, or its epoch is too high.
    """
    for position, header in iter_batches(batches):
        if header.leader_epoch > epoch:
            raise RemoteProtocolError(
                f"batch at offset {header.base_offset} is of epoch {header.leader_epoch} in epoch {epoch}"
            )
        if not header.is_control or header.leader_epoch != epoch:
            continue
        for each in decode_records(batches, position, header):
            if read_control(each).type != CONTROL_LEADER_CHANGE:
                continue
            change = decode(LeaderChangeMessage, each.value or b"", 0)
            named = sorted(voter.voter_id for voter in change.voters)
            if named == sorted(voters):
                continue
            text = (
                f"node {change.leader_id} leads the metadata quorum of the voters {_shown(named)}; "
                f"controller.quorum.voters names {_shown(sorted(voters))} here: give every node the same list"
            )
            if len(named) > 1 and high_watermark > header.base_offset:
                raise VotersDisagree(text)
            raise RemoteProtocolError(text)
