"""What administrators look at and abort by Kafka's own tools, on Barnabas."""

from __future__ import annotations

import time

import pytest

from barnabas.protocol.messages.transactions import (
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
)
from tests.support.oracle.tools import tool
from tests.support.oracle.wire import Wire

pytestmark = pytest.mark.oracle


def test_administrators_find_a_transaction_and_abort_it_on_a_partition(barnabas: str) -> None:
    with Wire(barnabas) as wire:
        wire.create_topic("stuck", 1)
        wire.find_coordinator("stuck", 1)
        begun = wire.call(InitProducerIdRequest(transactional_id="stuck", transaction_timeout_ms=600_000), 4)
        assert begun.error_code == 0
        identity = {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
        assert (
            wire.produce(12, "stuck", 0, [b"x"], transactional_id="stuck", base_sequence=0, **identity).error_code == 0
        )
        command = ("TransactionsCommand", "--bootstrap-server", barnabas)
        listed = [line.split() for line in tool(*command, "list").splitlines()]
        assert ["stuck", "1", str(begun.producer_id), "Ongoing"] in listed
        described = tool(*command, "describe", "--transactional-id", "stuck").splitlines()[-1].split()
        assert described[:6] == ["1", "stuck", str(begun.producer_id), str(begun.producer_epoch), "Ongoing", "600000"]
        assert described[-1] == "stuck-0"
        assert wire.fetch("stuck", 0, 0).last_stable_offset == 0
        tool(
            *command,
            *("abort", "--topic", "stuck", "--partition", "0", "--producer-id", str(begun.producer_id)),
            *("--producer-epoch", str(begun.producer_epoch), "--coordinator-epoch", "0"),
        )
        fetched = wire.fetch("stuck", 0, 0)
        assert fetched.last_stable_offset == fetched.high_watermark == 2
        # The coordinator's own abort comes to the same end later.
        request = EndTxnRequest(transactional_id="stuck", committed=False, **identity)
        assert wire.call(request, 5).error_code == 0
        deadline = time.monotonic() + 60
        while True:
            (state,) = wire.call(DescribeTransactionsRequest(transactional_ids=["stuck"]), 0).transaction_states
            if state.transaction_state == "CompleteAbort":
                break
            assert time.monotonic() < deadline, state
            time.sleep(0.02)
