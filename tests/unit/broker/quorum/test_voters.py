"""Who votes: directories with static voters, directories with the voters in the log, and those of other quorums."""

from __future__ import annotations

import pytest

from barnabas.broker.quorum.core.quorum_state import QuorumState
from barnabas.broker.quorum.core.snapshots import decode_snapshot, encode_snapshot
from barnabas.broker.quorum.core.voters import NotTheSoleVoter, VotersDisagree, VoterSet, VotersRecord
from barnabas.protocol.records import CONTROL_KRAFT_VERSION, CONTROL_KRAFT_VOTERS
from barnabas.protocol.schema import decode, encode
from tests.support.broker.standalone import STANDALONE, kafkas_voters


def test_kafkas_voter_set_is_read_and_kept_byte_for_byte() -> None:
    voters = kafkas_voters()
    assert (voters.kraft_version, voters.voters) == (1, (1,))
    (version_type, _), (voters_type, value) = voters.control_records()
    assert (version_type, voters_type) == (CONTROL_KRAFT_VERSION, CONTROL_KRAFT_VOTERS)
    assert encode(decode(VotersRecord, value, 0), 0) == value
    ours = encode_snapshot([], epoch=0, last_timestamp_ms=0, now_ms=0, control=voters.control_records())
    again = VoterSet()
    assert list(decode_snapshot(ours, again.take)) == []
    assert again.control_records() == voters.control_records()
    assert len(ours) == len(STANDALONE)


@pytest.mark.parametrize("state", [QuorumState(leader_epoch=4, voters=(1, 2, 3)), QuorumState(voters=(1, 3))], ids=repr)
def test_a_directory_with_other_voters_is_refused(state: QuorumState) -> None:
    with pytest.raises(
        VotersDisagree, match=r"quorum-state names the voters 1, .*controller\.quorum\.voters 1, 2: give"
    ):
        VoterSet().check(1, state, (1, 2))
    VoterSet().check(4, state, (1, 2))  # it does not vote: whom it follows it learns from the voters


def test_voters_of_the_log_and_their_version() -> None:
    voters = kafkas_voters()
    voters.check(1, QuorumState(), (1,))
    for node_id, configured in ((2, (1,)), (1, (1, 2)), (2, (2,))):
        with pytest.raises(NotTheSoleVoter, match="the metadata log holds the voters 1"):
            voters.check(node_id, QuorumState(), configured)
    voters.kraft_version = 2
    with pytest.raises(NotTheSoleVoter, match=r"kraft\.version is finalized at 2"):
        voters.check(1, QuorumState(), (1,))
