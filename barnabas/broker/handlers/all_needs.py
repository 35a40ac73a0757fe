"""AllNeeds: the union of what all handler families need; mypy checks that a node has all of it.

Imported for types only: at run time a family is imported on its first request.
"""

from __future__ import annotations

from typing import Protocol

from barnabas.broker.handlers import (
    acls,
    admin,
    authentication,
    cluster,
    configs,
    consumer_groups,
    delegation_tokens,
    delete_records,
    describe_cluster,
    envelope,
    fetch,
    group_offsets,
    groups,
    log_dirs,
    metadata,
    offsets,
    produce,
    producers,
    quorum,
    quotas,
    reassignments,
    scram_users,
    telemetry,
    transaction_listing,
    transactions,
    txn_offsets,
)


class AllNeeds(
    acls.Needs,
    admin.Needs,
    authentication.Needs,
    cluster.Needs,
    configs.Needs,
    consumer_groups.Needs,
    delegation_tokens.Needs,
    delete_records.Needs,
    describe_cluster.Needs,
    envelope.Needs,
    fetch.Needs,
    group_offsets.Needs,
    groups.Needs,
    log_dirs.Needs,
    metadata.Needs,
    offsets.Needs,
    produce.Needs,
    producers.Needs,
    quorum.Needs,
    quotas.Needs,
    reassignments.Needs,
    scram_users.Needs,
    telemetry.Needs,
    transaction_listing.Needs,
    transactions.Needs,
    txn_offsets.Needs,
    Protocol,
):
    """All members of all families' `Needs`."""
