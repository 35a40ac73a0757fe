"""Admin: topics, configs, records, groups, transactions and the cluster, as coroutines."""

from __future__ import annotations

from barnabas.client.admin.acls import AclAdmin
from barnabas.client.admin.cluster import ClusterAdmin
from barnabas.client.admin.configs import ConfigAdmin
from barnabas.client.admin.delegation_tokens import DelegationTokenAdmin
from barnabas.client.admin.groups import GroupAdmin
from barnabas.client.admin.quotas import QuotaAdmin
from barnabas.client.admin.reassignments import ReassignmentAdmin
from barnabas.client.admin.scram_users import ScramUserAdmin
from barnabas.client.admin.topics import TopicAdmin
from barnabas.client.admin.transactions import TransactionAdmin
from barnabas.client.loop_affinity import bound_to_loop


@bound_to_loop()
class Admin(
    ClusterAdmin,
    TopicAdmin,
    ConfigAdmin,
    QuotaAdmin,
    AclAdmin,
    ScramUserAdmin,
    DelegationTokenAdmin,
    ReassignmentAdmin,
    GroupAdmin,
    TransactionAdmin,
):
    """Administers a cluster: topics, configs, records, groups, transactions, brokers (KIP-117).

    Use as `async with Admin(bootstrap_servers="localhost:9092") as admin:` or with `start` … `stop`.

    Every call repeats its requests after retriable errors, until its time limit has passed: `timeout_ms` in milliseconds, by
    default `request_timeout_ms`. Then it raises RequestTimedOut. It raises ClientClosed before `start` and after `stop`, and
    otherwise the KafkaError that a broker answered. A call with several items raises the first error after it has tried all.

    Args:
        bootstrap_servers, client_id, retry_backoff_ms: as in Producer.
        request_timeout_ms: time limit of an answer in milliseconds, and of a call without `timeout_ms`.
        clock, rng, network: the ports; the real ones by default.
        security: the settings of TLS and SASL, as in Producer.

    Raises:
        IllegalState: a setting is invalid.
    """
