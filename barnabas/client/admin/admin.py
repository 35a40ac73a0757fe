"""Admin: topics, configs, records, groups, transactions and the cluster, as coroutines.

Driven by: its caller. Emits: requests to any broker, to leaders or to coordinators; retriable errors are retried until
`timeout_ms` has passed. A call with several items tries all of them, then raises the first error; the successful items stay
done. A cancelled call may or may not have taken effect.
Follows KIP-117, KIP-339 (incremental configs), KIP-516, KIP-664 (transactions), KIP-222 (groups), KIP-848 (consumer protocol),
KIP-455 (reassignments), KIP-460 (elections), KIP-584 (features), KIP-595 (metadata quorum).
"""

from __future__ import annotations

from barnabas.client.admin.cluster import ClusterAdmin
from barnabas.client.admin.groups import GroupAdmin
from barnabas.client.admin.reassignments import ReassignmentAdmin
from barnabas.client.admin.topics import TopicAdmin
from barnabas.client.admin.transactions import TransactionAdmin

__all__ = ["Admin"]


class Admin(ClusterAdmin, TopicAdmin, ReassignmentAdmin, GroupAdmin, TransactionAdmin):
    """Administers a cluster. Use as `async with Admin(bootstrap_servers=…) as admin:` or with `start` … `stop`."""
