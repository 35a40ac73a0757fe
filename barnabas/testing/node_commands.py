"""The kit's commands: functions that run inside a node's event loop, with JSON arguments and results. A name in COMMANDS works in both modes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.controller.core.features import FEATURES, METADATA_VERSION
from barnabas.broker.coordinator.groups.shard import GroupShard
from barnabas.broker.coordinator.transactions.shard import TransactionShard
from barnabas.broker.image.records import FeatureLevelRecord, encode_record
from barnabas.broker.quorum.core.snapshots import BOOTSTRAP, encode_snapshot
from barnabas.broker.replica.core.machine import Replica
from barnabas.errors import BrokerError
from barnabas.ports import Disk
from barnabas.protocol.batch_layout import HEADER_SIZE, LENGTH_OVERHEAD, offset_of, struct_of
from barnabas.protocol.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.testing.backend import INTERNAL_LISTENER
from barnabas.testing.errors import KitError
from barnabas.testing.faults.rule import Rule
from barnabas.testing.faults.table import Rewrite
from barnabas.testing.history.recorder import Recorder, last_requests
from barnabas.testing.versions import Release, kafka_release
from barnabas.testing.world.disks import DiskRule
from barnabas.testing.world.moves import begin_move, end_move, move_progress
from barnabas.testing.world.network import LinkRule

if TYPE_CHECKING:
    from barnabas.testing.node_host import NodeHost

DISK_BYTES_MAX: Final = 8 * 1024 * 1024  # in memory, with the files of deleted topics
GROUPS_WITH_MEMBERS: Final = "clock"  # in the host: ids of groups
POLL_FIRST_S: Final = 0.0005
POLL_S: Final = 0.01
_EXTENT = struct_of("base_offset", "batch_length")
_DELTA_OFFSET = offset_of("last_offset_delta")
_LOG = ".log"


# -- what a node knows


def partitions(host: NodeHost, topic: str | None = None) -> dict[str, list[dict[str, Any]]]:
    """The partitions of a topic, or of all topics, as this node knows them: leader (−1: none), replicas and in-sync replicas."""
    topics = host.running.image.topics_by_name
    return {
        name: [
            {"leader": each.leader, "replicas": list(each.replicas), "isr": list(each.isr)} for each in found.partitions
        ]
        for name, found in topics.items()
        if topic is None or name == topic
    }


def controller(host: NodeHost) -> int:
    """Node id of the active controller, as this node knows it; −1 if it knows none."""
    return host.running.quorum.leader_id


def live_brokers(host: NodeHost) -> list[int]:
    """Ids of the brokers that are registered and unfenced, as this node knows them."""
    return sorted(each.broker_id for each in host.running.image.alive_brokers())


def connections(host: NodeHost) -> list[dict[str, Any]]:
    """The open connections of clients."""
    return [
        {"client_id": each.client_id or "", "host": each.client_host, "port": each.client_port}
        for each in host.running.server.connections
        if each.listener_name != INTERNAL_LISTENER
    ]


def metrics_address(host: NodeHost) -> tuple[str, int] | None:
    """Host and port of the broker's metrics; None if `metrics.listen` is not set."""
    metrics = host.running.metrics
    return None if metrics is None else metrics.address


async def ensure_internal_topics(host: NodeHost) -> None:
    """Creates the topics of groups and of transactions, as the first client of each would. Raises BrokerError."""
    for name in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC):
        ensured: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
        host.running.controller.ensure_topic(name, ensured.set_result)
        problem = await ensured
        if problem is not None:
            raise problem


# -- the next test


def lasting_state(host: NodeHost) -> list[str]:
    """What a test can change in this node, or in what it knows of the cluster, as text."""
    node, image = host.running, host.running.image
    groups = [each.group_id for _, shard in node.groups.host.active_shards() for each in shard.groups()]
    ids = [each for _, shard in node.transactions.host.active_shards() for each in shard.transactions]
    replicas = sorted((each.topic, each.partition, each.leader_epoch) for each in node.replicas.all())
    metadata: tuple[Mapping[Any, Any], ...] = (
        *(image.features, image.configs, image.topics_by_name, image.brokers, image.controllers),
        *(image.acls, image.scram_credentials, image.delegation_tokens, image.quotas),
    )
    return [repr(sorted(map(repr, each.items()))) for each in metadata] + [repr((image.foreign, replicas, groups, ids))]


def forget_test(host: NodeHost) -> None:
    """Deletes the groups without members and the transactional ids without a transaction that this node coordinates.

    Raises KitError: the test has left more in memory than another one should pay for.
    """
    used = sum(each.total_bytes() - each.available_bytes() for each in host.disks)
    if used > DISK_BYTES_MAX:
        raise KitError(f"broker {host.node_id} has {used} bytes of files")
    node = host.running
    for _, groups in node.groups.host.active_shards():
        for group in groups.groups():
            node.groups.write(group.group_id, partial(_without_group, group.group_id), _ignored)
    for partition, transactions in node.transactions.host.active_shards():
        now_ms = host.clock.now_ms()
        for transactional_id in transactions.expirable(now_ms):
            node.transactions.host.write(partition, partial(_without_id, transactional_id), _ignored)
    host.recorder.begin_anew()


def _without_group(group_id: str, shard: GroupShard, _at: Any) -> Any:
    return shard.delete_group(group_id)


def _without_id(transactional_id: str, shard: TransactionShard, now_ms: int) -> Any:
    return shard.expire(transactional_id, now_ms)


def _ignored(_outcome: object) -> None:
    """What was refused is still there, so the states differ."""


# -- releases of Kafka


def set_release(host: NodeHost, name: str) -> None:
    """Before the start of the node: it serves clients as this release does."""
    host.release = kafka_release(name)
    _format(host.disks[0], host.release)


def _format(disk: Disk, limits: Release) -> None:
    """Writes the feature levels of a new cluster, as Kafka's storage tool does. A disk that has them keeps them."""
    if disk.exists(BOOTSTRAP):
        return
    levels = {name: each.initial for name, each in FEATURES.items()}
    levels.update({name: 0 for name in levels if name != METADATA_VERSION})
    levels.update({name: each[2] for name, each in limits.features.items() if name != METADATA_VERSION})
    records = [FeatureLevelRecord(name=name, feature_level=level) for name, level in levels.items() if level > 0]
    values = [encode_record(each) for each in records]
    disk.replace(BOOTSTRAP, encode_snapshot(values, epoch=0, last_timestamp_ms=0, now_ms=0))


# -- the clock


def start_clock(host: NodeHost, offset_ms: int) -> None:
    """Before the node starts."""
    host.travel.move_to(offset_ms)


async def move_clock(host: NodeHost, offset_ms: int, wait_ms: int) -> int | None:
    """Moves the clocks and runs due timers. Returns the offset of the next timer; None without one."""
    travel = host.travel
    timers, clock = host.running.reactor.client_time.timers, travel.client_clock
    travel.move_to(offset_ms)
    timers.on_clock_moved()

    def done() -> bool:
        next_ms = timers.next_ms
        return _is_idle(host) and (next_ms is None or next_ms > clock.monotonic_ms())

    await _until(done, wait_ms)
    following_ms = timers.next_ms
    return None if following_ms is None else following_ms - clock.monotonic_ms() + travel.offset_ms


async def begin_jump(host: NodeHost, wait_ms: int) -> None:
    """Before a jump: runs the log cleaner and notes which groups have members."""
    host.state[GROUPS_WITH_MEMBERS] = frozenset(
        group.group_id
        for _, shard in host.running.groups.host.active_shards()
        for group in shard.groups()
        if not group.is_empty
    )
    await clean_logs(host, wait_ms)


async def clean_logs(host: NodeHost, wait_ms: int) -> None:
    """Runs the log cleaner once, after the sync of the records to clean."""
    for _ in range(max(int(wait_ms / 1000 / POLL_S), 1)):
        if await host.running.cleaner.clean_now():
            return
        await asyncio.sleep(POLL_S)


async def check_logs(host: NodeHost) -> None:
    """Applies retention and producer expiry to every log."""
    waiting = list(host.running.replicas.all())
    while waiting:
        waiting = [each for each in waiting if await _checked(host, each)]


async def _checked(host: NodeHost, replica: Replica) -> bool:
    """One slice of work on a log. Returns whether more remains."""
    more = host.running.upkeep.check(replica)
    await asyncio.sleep(0)
    return more


async def expire_groups_and_ids(host: NodeHost, wait_ms: int) -> None:
    """Expires group offsets and transactional ids. Groups with members at the start of the jump stay: some clients would fail on GROUP_ID_NOT_FOUND."""
    node = host.running
    expired = asyncio.Event()
    node.groups.expire_offsets(expired.set, host.state.pop(GROUPS_WITH_MEMBERS, ()))
    await _until(lambda: expired.is_set() and not node.transactions.expire_ids() and _is_idle(host), wait_ms)


def _is_idle(host: NodeHost) -> bool:
    """Whether all coordinator decisions are committed and all markers written."""
    node = host.running
    return node.transactions.host.is_idle and node.groups.host.is_idle and not len(node.transactions.markers)


async def _until(reached: Callable[[], bool], wait_ms: int) -> None:
    loop = asyncio.get_running_loop()
    end_s, pause_s = loop.time() + wait_ms / 1000, 0.0
    while not reached() and loop.time() < end_s:
        await asyncio.sleep(pause_s)
        pause_s = min(max(2 * pause_s, POLL_FIRST_S), POLL_S)


# -- faults on the wire


def install_fault(
    host: NodeHost, number: int, rule: dict[str, Any], matched: int = 0, rewrite: Rewrite | None = None
) -> None:
    """`rewrite` is a function: only for nodes in this process."""
    host.interception.faults.install(number, Rule(**rule), rewrite, matched)


def end_fault(host: NodeHost, number: int) -> None:
    """Stops matching; held requests stay held."""
    host.interception.faults.end(number)


def release_fault(host: NodeHost, number: int) -> None:
    """Serves the held requests."""
    host.interception.faults.release(number)


def remove_fault(host: NodeHost, number: int) -> None:
    """Stops matching and serves the held requests."""
    host.interception.faults.remove(number)


# -- history


def history_level(
    host: NodeHost,
    level: str,
    sink: Callable[[dict[str, Any]], None] | None = None,
    keep: Callable[[Recorder], None] | None = None,
) -> None:
    """Notes more or less from now on. `sink` and `keep` are functions, so only a node in this process can have them."""
    if keep is not None:
        keep(host.recorder)
    host.recorder.set_level(level, sink)
    if host.node is not None:
        host.interception.apply()


def history_last(host: NodeHost) -> list[dict[str, Any]]:
    """The last requests of each client."""
    return last_requests(host.recorder)


def history_seen(host: NodeHost, number: int) -> dict[str, int]:
    """Confirms the events up to a number; returns the number of the last event, and how many were forgotten."""
    host.recorder.seen(number)
    return {"noted": host.recorder.noted, "forgotten": host.recorder.forgotten}


# -- audit


def audit_watch(host: NodeHost, numbers_from: int) -> None:
    """Holds responses to clients from now on, numbered from `numbers_from` + 1."""
    host.interception.watch.begin(numbers_from)


def audit_unwatch(host: NodeHost) -> None:
    """Stops holding responses and sends the held ones."""
    host.interception.watch.end()


def audit_decide(host: NodeHost, number: int, answer: str) -> None:
    """`answer`: "given", "lost" or the name of an error."""
    host.interception.watch.decide(number, answer)


# -- links and disks


def set_links(host: NodeHost, rules: list[dict[str, Any]], ports: dict[str, int]) -> None:
    """Replaces all rules about links. `ports`: port of a listener for clients or brokers → id of its broker."""
    known = {int(port): broker_id for port, broker_id in ports.items()}
    known |= {each.port: node_id for node_id, each in host.config.voter_endpoints.items()}
    host.links.set_rules(tuple(LinkRule.of(each) for each in rules), known)


def set_disk_faults(host: NodeHost, faults: list[dict[str, Any]]) -> None:
    """Replaces all faults of the disks; a fault of all of them counts its calls over all."""
    rules = [DiskRule(**each) for each in faults]
    for number, disk in enumerate(host.files, start=1):
        disk.set_rules([each for each in rules if each.log_dir in (None, number)])


def flip_bit(host: NodeHost, topic: str, partition: int, offset: int) -> str:
    """Flips a bit of a record on the disk. Returns what is wrong, or nothing."""
    folder = f"{topic}-{partition}"
    disk = next((each for each in host.files if each.exists(folder)), host.files[0])
    problem = _flip(disk.real, folder, offset)
    replica = host.running.replicas.get(topic, partition)
    if not problem and replica is not None:
        log = replica.log
        log._tail.clear(log.log_end_offset)  # the copy in memory, which would hide the damage from readers
    return problem


def lose_page_cache(host: NodeHost) -> None:
    """Ends the node at once and loses what it has not synced."""
    host.kill()
    host.lose_page_cache()


def _flip(disk: Disk, folder: str, offset: int) -> str:
    """Flips the lowest bit of the last byte of the batch with this offset. Returns what is wrong, or nothing."""
    if not disk.exists(folder):
        return f"it has no replica {folder}"
    bases = sorted(int(each[: -len(_LOG)]) for each in disk.listdir(folder) if each.endswith(_LOG))
    base = max((each for each in bases if each <= offset), default=-1)
    if base < 0:
        return f"{folder} has no record at offset {offset}: it begins at {bases[0] if bases else 0}"
    file = disk.open(f"{folder}/{base:020d}{_LOG}")
    try:
        size, position = file.size(), 0
        while position + HEADER_SIZE <= size:
            header = file.pread(HEADER_SIZE, position)
            first, length = _EXTENT.unpack_from(header)
            end = position + length + LENGTH_OVERHEAD
            last = first + int.from_bytes(header[_DELTA_OFFSET : _DELTA_OFFSET + 4], "big")
            if first <= offset <= last and end <= size:
                [byte] = file.pread(1, end - 1)
                file.pwrite(bytes([byte ^ 1]), end - 1)
                return ""
            position = max(end, position + HEADER_SIZE)
    finally:
        file.close()
    return f"{folder} has no record at offset {offset}"


COMMANDS: Final[dict[str, Callable[..., Any]]] = {
    each.__name__: each
    for each in (
        partitions,
        controller,
        live_brokers,
        connections,
        metrics_address,
        ensure_internal_topics,
        lasting_state,
        forget_test,
        set_release,
        start_clock,
        move_clock,
        begin_jump,
        clean_logs,
        check_logs,
        expire_groups_and_ids,
        end_fault,
        release_fault,
        remove_fault,
        history_last,
        history_seen,
        audit_watch,
        audit_unwatch,
        audit_decide,
        set_links,
        set_disk_faults,
        flip_bit,
        lose_page_cache,
        install_fault,
        history_level,
        begin_move,
        move_progress,
        end_move,
    )
}
