"""Node: one node of a cluster, put together. The composition root of the broker package.

Driven by: `start`, `stop`, `kill`; the metadata loader, which publishes every change through `current_image`.
Emits: a served address; a data directory that another start, or Apache Kafka, can open.

The four ports come in here and nowhere else. Every node follows the metadata quorum and replays its log. One with the role
controller votes, and may become the active controller. One with the role broker owns replicas, coordinators and connections of
clients. All of them own the lock and identity of their data directory. What the parts need from the process is in `reactor`.

Invariants: no client is served before the node's own image holds its registration, unfenced; the clean-shutdown file is
written last at a stop and taken away first at a start; after `fatal` nothing is acknowledged any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from barnabas.broker.awaited_leaders import AwaitedLeaders
from barnabas.broker.config import BROKER, CONTROLLER, BrokerConfig, Endpoint
from barnabas.broker.coordinator.connection_fence import ConnectionFence
from barnabas.broker.coordinator.groups import GroupCoordinator
from barnabas.broker.coordinator.marker_writer import MarkerWriter
from barnabas.broker.coordinator.transactions import TransactionCoordinator
from barnabas.broker.current_image import CurrentImage
from barnabas.broker.fetch_sessions import FetchSessions
from barnabas.broker.identity import Identity
from barnabas.broker.lifecycle import Lifecycle
from barnabas.broker.listing import BrokerListing
from barnabas.broker.long_work import LongWork, Offload, in_place
from barnabas.broker.metadata.channel import ControllerChannel
from barnabas.broker.metadata.controller import QuorumController
from barnabas.broker.metadata.image import BROKER_RESOURCE, MetadataDelta, MetadataImage
from barnabas.broker.metadata.loader import MetadataLoader
from barnabas.broker.metadata.topic_names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.broker.peers import Peers
from barnabas.broker.quorum.quorum import Quorum
from barnabas.broker.reactor import Reactor
from barnabas.broker.replica.alter_partition import IsrChanges
from barnabas.broker.replica.assignments import DirectoryAssignments
from barnabas.broker.replica.cleaner import Cleaner
from barnabas.broker.replica.directories import LogDirectories
from barnabas.broker.replica.directory import LogDirectory
from barnabas.broker.replica.fetcher import Fetchers
from barnabas.broker.replica.replicas import Election, Replicas
from barnabas.broker.replica.throttle import ReplicationThrottles
from barnabas.broker.replica.upkeep import Upkeep
from barnabas.broker.router import Router
from barnabas.broker.server import Server
from barnabas.broker.server_keys import RACK_AWARE_SELECTOR
from barnabas.broker.slices import Slices, Work
from barnabas.errors import InvariantViolated
from barnabas.ports import Clock, Disk, Network, Rng

__all__ = ["Node"]

log = logging.getLogger(__name__)

LAST_WORDS_MS: Final = 500  # between the failure of the last directory and the end
# Requests of librdkafka, of the Java client and of aiokafka whose codecs are made before `ready`.
HOT_ROUTES: Final = ((18, 3), (3, 12), (0, 10), (1, 16))


class Coordinator(Protocol):
    """The coordinator of an internal topic."""

    def on_elected(self, partition: int, leader_epoch: int) -> None:
        """This node leads the partition in that epoch."""
        ...

    def on_resigned(self, partition: int) -> None:
        """This node no longer leads the partition."""
        ...


class Node:
    """One node.

    Attributes:
        reactor: clock, random numbers, tasks and timers of the node.
        clean_start: whether the last stop of the data directory was clean; known once it is opened.
        current_image: the published metadata, and the parts that are told of a new one, in their order.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        rng: Rng,
        disk: Disk,
        other_disks: Sequence[Disk] = (),
        network: Network,
        offload: Offload = in_place,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        """Puts the parts together; touches neither disk nor network.

        Args:
            disk: the first of `log.dirs`, which holds the metadata log, too.
            other_disks: the others, in their order.
            offload: runs long work of C code beside the loop.
            on_fatal: called once when the node cannot go on (disk failed, invariant broken); it has stopped serving then.
        """
        self.config = config
        self.reactor = Reactor(clock, rng, name=f"node {config.node_id}", on_fatal=self._on_failure)
        self.node_id = config.node_id
        self.cluster_id = ""
        self.directory_id = b""
        self.clean_start = False
        self.alone = CONTROLLER in config.roles and len(config.voter_endpoints) < 2  # nobody else can be the controller
        self.current_image = CurrentImage()
        self._on_fatal = on_fatal
        self._alive = False
        self._logs_open = False
        self.slices = Slices(self.reactor.next_turn, self.reactor.fatal)
        self.fetch_max_bytes = config.get_int("fetch.max.bytes")
        self.throttles = ReplicationThrottles(config)
        self.fetch_sessions = FetchSessions(
            rng,
            clock.monotonic_ms,
            slots=config.get_int("max.incremental.fetch.session.cache.slots"),
            reads_by_rack=config.get_str("replica.selector.class") == RACK_AWARE_SELECTOR,  # KIP-392
        )
        self.listing = BrokerListing(self.reactor, config, self.current_image)
        self.connection_fence = ConnectionFence()
        self.peers = Peers(self.reactor, network, config)
        self.awaited_leaders = AwaitedLeaders(self.reactor, config, self.current_image, self.peers)
        self.log_dirs = LogDirectories([self._log_directory(each) for each in (disk, *other_disks)])
        self.quorum = Quorum(self.reactor, config, disk, self.peers, on_disk_failed=self.log_dirs.main.fail)
        self.quorum_controller = (
            QuorumController(
                self.reactor,
                config,
                slices=self.slices,
                current=self.current_image,
                quorum=self.quorum,
                disk=disk,
                network=network,
                peers=self.peers,
            )
            if CONTROLLER in config.roles
            else None
        )
        self.controller = ControllerChannel(
            self.reactor,
            config,
            self.current_image,
            self.peers,
            self.quorum,
            self.quorum_controller,
            broker_epoch=lambda: self.lifecycle.broker_epoch,
        )
        self.lifecycle = Lifecycle(
            self.reactor,
            config,
            self.current_image,
            self.controller,
            self.log_dirs,
            alone=self.alone,
            on_session_over=lambda: self.replicas.on_session_over(),
        )
        self.loader = MetadataLoader(
            self.reactor,
            slices=self.slices,
            quorum=self.quorum,
            current=self.current_image,
            controller=self.quorum_controller,
            channel=self.controller,
            heartbeat_now=self.lifecycle.hurry,
        )
        self.quorum.listener = self.loader
        self.directory_assignments = DirectoryAssignments(
            self.reactor, self.node_id, self.controller, lambda: self.lifecycle.broker_epoch
        )
        self.isr_changes = IsrChanges(self.reactor, self.node_id, self.current_image, self.controller)
        self.fetchers = Fetchers(self.reactor, config, self.current_image, self.peers, self.throttles.follower)
        self.replicas = Replicas(
            self.reactor,
            config,
            self.log_dirs,
            self.fetchers,
            propose=self.isr_changes.propose,
            may_lead=self.lifecycle.may_lead,
            tell_directory=self.directory_assignments.tell,
            checkpoint_soon=lambda: self.upkeep.checkpoint_soon(),
            elected=self._on_elections,
        )
        self.upkeep = Upkeep(self.reactor, config, self.log_dirs, self.replicas, self.slices)
        self.cleaner = Cleaner(
            self.reactor, config, self.replicas, checkpoint_soon=self.upkeep.checkpoint_soon, offload=offload
        )
        self.long_work = LongWork(self.reactor, offload)
        self.groups = GroupCoordinator(
            self.reactor,
            config,
            slices=self.slices,
            long_work=self.long_work,
            current=self.current_image,
            replicas=self.replicas,
        )
        self.marker_writer = MarkerWriter(self.replicas, self.groups)
        self.transactions = TransactionCoordinator(
            self.reactor,
            config,
            current=self.current_image,
            peers=self.peers,
            replicas=self.replicas,
            long_work=self.long_work,
            marker_writer=self.marker_writer,
            allocate_producer_ids=self.controller.allocate_producer_ids,
        )
        self._coordinators: dict[str, Coordinator] = {
            TRANSACTION_STATE_TOPIC: self.transactions,
            GROUP_METADATA_TOPIC: self.groups,
        }
        self.current_image.followers = (self._reconfigure, self._apply_to_replicas)
        self.current_image.subscribers = (
            self.listing.on_image,
            self.transactions.on_image,
            self.groups.on_image,
            self.lifecycle.on_image,
            *(() if self.quorum_controller is None else (self.quorum_controller.on_image,)),
            self.controller.on_image,
            self.awaited_leaders.on_image,
        )
        self.router = Router(self)
        self.server = Server(self.reactor, config, network, self.router, self.slices)
        self.controller_router = Router(self, listener="controller")
        self.controller_server = Server(self.reactor, config, network, self.controller_router, self.slices)

    # -- life

    async def start(self) -> tuple[str, int]:
        """Opens the data directory, joins the quorum, registers, recovers the logs and serves.

        Returns:
            Host and port really bound for clients; of the controller listener where the node is no broker.

        Raises:
            DirectoryInUse: another live process has the data directory.
            OSError: an address is taken or the disk refuses.
            BarnabasError: the data directory belongs to another node or cluster, or is damaged; the controller refuses the node, or
                none registers it within initial.broker.registration.timeout.ms.
        """
        self.reactor.attach()
        self._alive = True
        try:
            identity = self.log_dirs.open(self.config, self.reactor.rng)
            self.cluster_id, self.directory_id = identity.cluster_id, identity.directory_id
            self.clean_start = identity.clean
            self.quorum.open(identity.cluster_id, identity.directory_id, clean=identity.clean)
            address = await self._listen()
            await self.quorum.start()
            if CONTROLLER in self.config.roles:
                self.lifecycle.register_controller()
            if BROKER in self.config.roles:
                await self._start_broker(identity)
        except BaseException:
            self._give_back()
            self.kill()
            raise
        return address

    async def _listen(self) -> tuple[str, int]:
        """Takes all addresses, so that a wrong one is told at once; clients are refused until the node can serve them."""
        addresses = [await self.server.bind(listener) for listener in self.config.listeners]
        controller_listener = self.config.controller_listener
        if controller_listener is not None:
            addresses.append(await self.controller_server.bind(controller_listener))
            await self.controller_server.accept()
            self.controller_server.serve()
        return addresses[0]

    async def _start_broker(self, identity: Identity) -> None:
        await self.lifecycle.register(self._endpoints(), identity.broker_epoch)
        self._logs_open = True
        await self.replicas.load(self.current_image.image)
        self.transactions.start()
        self.groups.start()
        self.fetchers.start()
        self.upkeep.start()
        self.cleaner.start()
        for api_key, version in HOT_ROUTES:
            self.router.route(api_key, version)
        await self.server.accept()
        await self.lifecycle.unfence()
        self.server.serve()

    def _endpoints(self) -> list[Endpoint]:
        """What clients are told: advertised.listeners, with ports asked for as 0 replaced by the one that was bound."""
        found = []
        for endpoint in self.config.advertised_listeners:
            bound = self.server.addresses.get(endpoint.name, (endpoint.host, endpoint.port))
            host = endpoint.host or bound[0]
            if host in ("0.0.0.0", "::"):
                host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # nobody can connect to "every interface"
            found.append(Endpoint(endpoint.name, host, endpoint.port or bound[1], endpoint.security_protocol))
        return found

    async def stop(self) -> None:
        """A clean stop: leaderships are handed over, connections end, logs are synced and closed, the mark of it is written."""
        if not self._alive:
            return
        await self.lifecycle.shut_down()
        self.server.close()
        self.transactions.stop()
        self.groups.stop()
        self.fetchers.stop()
        self._end_control()
        await self.quorum.stop()
        self.controller.close()
        self.controller_server.close()
        self.peers.close()
        self.slices.close()
        await self.reactor.stop()
        if self._logs_open:
            self._logs_open = False
            self.replicas.close(self.lifecycle.broker_epoch)
        else:
            self._give_back()
        self._alive = False
        self.log_dirs.release()

    def _end_control(self) -> None:
        """Nothing more is decided here, and no controller asked."""
        if self.quorum_controller is not None:
            self.quorum_controller.close()
        self.controller.close()

    def _give_back(self) -> None:
        """No log of a partition was opened: the directory is left as clean as it was found."""
        if self.log_dirs.main.identity is not None and not self._logs_open and self.reactor.failure is None:
            try:
                self.quorum.close()
                self.log_dirs.give_back()
            except OSError as error:
                log.error("node %d could not leave its directory as it was: %s", self.node_id, error)

    def kill(self) -> None:
        """Ends at once, as a crash does: nothing is written, nobody is told."""
        self._alive = False
        self.slices.close()
        self.reactor.kill()
        self._end_control()
        self.quorum.kill()
        self.controller.close()
        self.replicas.abandon()
        self.fetchers.stop()
        self.peers.abort()
        self.server.abort()
        self.controller_server.abort()
        self.log_dirs.release()

    def _on_failure(self, error: BaseException) -> None:
        """The node cannot go on: it stops serving and tells its owner. What is on disk stays as it is."""
        log.critical("node %d stops: %s", self.node_id, error, exc_info=isinstance(error, InvariantViolated))
        self.kill()
        self.lifecycle.on_fatal(error)
        if self._on_fatal is not None:
            self._on_fatal(error)

    # -- log directories

    def _log_directory(self, disk: Disk) -> LogDirectory:
        return LogDirectory(
            disk,
            soon=self.reactor.soon,
            start=self._start_sync,
            on_failure=self._on_directory_failed,
        )

    def _start_sync(self, sync: Coroutine[Any, Any, None], name: str) -> None:
        if self.reactor.scope.stopping:
            sync.close()  # what is left is synced when the logs are closed
        else:
            self.reactor.scope.start(sync, name=name)

    def _on_directory_failed(self, directory: LogDirectory) -> None:
        """Its partitions are offline from here on. Without the metadata log the node ends."""
        if not self._alive:
            return
        self._on_elections(self.replicas.on_directory_failed(directory))
        if directory is not self.log_dirs.main:
            self.lifecycle.on_directory_failed(directory)
        elif directory.failure is not None:
            self._end_for(directory.failure)

    def _end_for(self, failure: OSError) -> None:
        """Nobody is answered any more. Before the end others are told, so that they need not find out: who leads the quorum
        resigns, and the controller hears that this broker's directories are offline."""
        if self.alone or not self._logs_open:
            self.reactor.fatal(failure)
            return
        self.server.abort()
        self.quorum.resign()
        self.lifecycle.hurry()
        self.reactor.call_later(LAST_WORDS_MS, lambda: self.reactor.fatal(failure))

    # -- metadata

    @property
    def image(self) -> MetadataImage:
        """The published metadata image."""
        return self.current_image.image

    @property
    def failure(self) -> BaseException | None:
        """What made the node stop by itself, else None."""
        return self.reactor.failure

    def _reconfigure(self, image: MetadataImage, delta: MetadataDelta) -> Work:
        """The node's own settings follow the next image."""
        if any(kind == BROKER_RESOURCE for kind, _ in delta.configs):
            self.config.reconfigure(image.cluster_config, image.broker_config(self.node_id))
            self.fetch_max_bytes = self.config.get_int("fetch.max.bytes")
            self.server.on_config()
            self.controller_server.on_config()
        yield from ()

    def _apply_to_replicas(self, image: MetadataImage, delta: MetadataDelta) -> Work:
        """The replicas follow the next image, once their logs are open."""
        if self._logs_open:
            yield from self.replicas.apply(image, delta)

    def _on_elections(self, elections: list[Election]) -> None:
        """The coordinator of a topic follows the leadership of the topic's partitions."""
        for topic, partition, leader_epoch, leads in elections:
            coordinator = self._coordinators.get(topic)
            if coordinator is None:
                continue
            if leads:
                coordinator.on_elected(partition, leader_epoch)
            else:
                coordinator.on_resigned(partition)
