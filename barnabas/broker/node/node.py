"""Node: one node of a cluster, the composition root of the broker package."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from barnabas.broker.api.access import FullAccess
from barnabas.broker.api.router import Router
from barnabas.broker.config.authorizer_settings import AuthorizerSettings
from barnabas.broker.config.broker_config import BROKER, CONTROLLER, BrokerConfig
from barnabas.broker.config.table import RACK_AWARE_SELECTOR
from barnabas.broker.controller.channel import ControllerChannel
from barnabas.broker.controller.controller import QuorumController
from barnabas.broker.controller.loader import MetadataLoader
from barnabas.broker.coordinator.group_coordinator import GroupCoordinator
from barnabas.broker.coordinator.marker_writer import MarkerWriter
from barnabas.broker.coordinator.shard_host import PartitionCoordinator
from barnabas.broker.coordinator.transaction_coordinator import TransactionCoordinator
from barnabas.broker.coordinator.transactions.connection_fence import ConnectionFence
from barnabas.broker.front.server import Server
from barnabas.broker.handlers.failover_purgatory import FailoverPurgatory
from barnabas.broker.image.change_lines import log_changes
from barnabas.broker.image.current_image import CurrentImage
from barnabas.broker.image.image import BROKER_RESOURCE, CLIENT_METRICS_RESOURCE, MetadataDelta, MetadataImage
from barnabas.broker.membership.advertised import advertised_endpoints
from barnabas.broker.membership.lifecycle import Lifecycle
from barnabas.broker.membership.listing import BrokerListing
from barnabas.broker.peers.node_network import peer_logins, secured
from barnabas.broker.peers.peers import Peers
from barnabas.broker.quorum.quorum import Quorum
from barnabas.broker.replica.alter_partition import IsrChanges
from barnabas.broker.replica.assignments import DirectoryAssignments
from barnabas.broker.replica.cleaner import Cleaner
from barnabas.broker.replica.core.fetch_sessions import FetchSessions
from barnabas.broker.replica.core.identity import BrokerIdentity
from barnabas.broker.replica.core.throttle import ReplicationThrottles
from barnabas.broker.replica.fetcher import Fetchers
from barnabas.broker.replica.log_dir import LogDirectory
from barnabas.broker.replica.log_dirs import LogDirectories
from barnabas.broker.replica.log_maintenance import CheckpointWriter, LogMaintenance
from barnabas.broker.replica.replicas import LeadershipChange, Replicas
from barnabas.broker.scheduling.reactor import Reactor
from barnabas.broker.scheduling.slices import Offload, Slices, in_place
from barnabas.broker.security.login import node_logins
from barnabas.errors import InvariantViolated
from barnabas.loggers import logger
from barnabas.network_port import Network
from barnabas.ports import Clock, Disk, Rng
from barnabas.protocol.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.runtime.memory import hold_collector, release_collector
from barnabas.work import Work

if TYPE_CHECKING:
    from barnabas.broker.authorization.authorizer import Authorizer
    from barnabas.broker.handlers.needs import Needs
    from barnabas.broker.metrics.node_metrics import NodeMetrics
    from barnabas.broker.telemetry.clients import ClientTelemetry

log = logger("kafka.server")

RESIGN_GRACE_MS: Final = 500  # time to announce the failure of the last directory before the node stops
# Requests of librdkafka, of the Java client and of aiokafka whose codecs are made before `ready`.
HOT_ROUTES: Final = ((18, 3), (3, 12), (0, 10), (1, 16))


class Node:
    """One node, over four ports: clock, network, disks, random numbers.

    Every node follows the metadata quorum and replays its log. One with the role controller votes and may become the active controller; one
    with the role broker owns replicas, coordinators and client connections. It serves no client before its own image holds its
    registration, unfenced. A stop writes the clean-shutdown file last, and a start removes it first; after `fatal` the node acknowledges
    nothing.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        client_clock: Clock | None = None,
        rng: Rng,
        disk: Disk,
        other_disks: Sequence[Disk] = (),
        network: Network,
        offload: Offload = in_place,
        on_fatal: Callable[[BaseException], None] | None = None,
        authorizer: AuthorizerSettings | None = None,
    ) -> None:
        """Constructs the parts; uses neither disk nor network.

        Args:
            client_clock: measures sessions of groups and timeouts of transactions, if a test kit moves that time; None for `clock`.
            disk: the first of `log.dirs`; it also holds the metadata log.
            other_disks: the other log directories, in the order of `log.dirs`.
            offload: runs long C calls in threads.
            on_fatal: called once after the node stopped serving because it cannot continue (disk failed, invariant broken).
            authorizer: of a test; None for what the configuration says.
        """
        self.config = config
        self.node_id = config.node_id
        self.cluster_id = ""
        self.directory_id = b""
        self.clean_start = False  # whether the previous stop was clean; known after the data directory is opened
        self.alone = CONTROLLER in config.roles and len(config.voter_endpoints) < 2  # the sole controller
        self.fetch_max_bytes = config.get_int("fetch.max.bytes")
        self._network = network
        self._on_fatal = on_fatal
        self._alive = False
        self._logs_open = False
        self.reactor = Reactor(
            clock, rng, name=f"node {config.node_id}", on_fatal=self._on_failure, client_clock=client_clock
        )
        self.slices = Slices(
            self.reactor.next_turn,
            self.reactor.fatal,
            partial(self.reactor.run_beside, offload),
            on_busy=hold_collector,
            on_idle=release_collector,
        )

        # the metadata quorum, and the way to its leader
        self.current_image = CurrentImage()
        self.tls, peer_network = secured(self.reactor, network, config)
        logins = peer_logins(config, rng, offload)
        self.peers = Peers(self.reactor, peer_network, config, self.slices, logins, below=network)
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
            self.reactor, config, self.current_image, self.peers, self.quorum, self.quorum_controller
        )
        self.lifecycle = Lifecycle(
            self.reactor, config, self.current_image, self.controller, self.log_dirs, alone=self.alone
        )
        self.loader = MetadataLoader(
            self.reactor,
            slices=self.slices,
            quorum=self.quorum,
            current=self.current_image,
            controller=self.quorum_controller,
            channel=self.controller,
            heartbeat_now=self.lifecycle.heartbeat_now,
        )

        # the logs
        self.throttles = ReplicationThrottles(config)
        self.directory_assignments = DirectoryAssignments(
            self.reactor, self.node_id, self.controller, broker_epoch=lambda: self.lifecycle.broker_epoch
        )
        self.isr_changes = IsrChanges(self.reactor, self.node_id, self.current_image, self.controller)
        self.fetchers = Fetchers(self.reactor, config, self.current_image, self.peers, self.throttles, self.slices)
        checkpoints = CheckpointWriter(self.reactor, self.log_dirs, self.slices)
        self.replicas = Replicas(
            self.reactor,
            config,
            self.log_dirs,
            self.fetchers,
            propose=self.isr_changes.propose,
            followed_since_ms=self.lifecycle.followed_since_ms,
            assign_directory=self.directory_assignments.assign,
            checkpoint_soon=checkpoints.soon,
            elected=self._on_elections,
        )
        self.upkeep = LogMaintenance(self.reactor, config, checkpoints, self.replicas, self.slices)
        self.cleaner = Cleaner(self.reactor, config, self.replicas, checkpoint_soon=checkpoints.soon, offload=offload)

        # the coordinators
        self.connection_fence = ConnectionFence()
        self.groups = GroupCoordinator(
            self.reactor,
            config,
            slices=self.slices,
            current=self.current_image,
            replicas=self.replicas,
        )
        self.marker_writer = MarkerWriter(self.slices, self.replicas, self.groups)
        self.transactions = TransactionCoordinator(
            self.reactor,
            config,
            current=self.current_image,
            peers=self.peers,
            replicas=self.replicas,
            slices=self.slices,
            marker_writer=self.marker_writer,
            allocate_producer_ids=self.lifecycle.allocate_producer_ids,
        )
        self._coordinators: dict[str, PartitionCoordinator] = {
            TRANSACTION_STATE_TOPIC: self.transactions,
            GROUP_METADATA_TOPIC: self.groups,
        }

        # clients
        self.fetch_sessions = FetchSessions(
            rng,
            clock.monotonic_ms,
            slots=config.get_int("max.incremental.fetch.session.cache.slots"),
            reads_by_rack=config.get_str("replica.selector.class") == RACK_AWARE_SELECTOR,  # KIP-392
        )
        self.listing = BrokerListing(self.reactor, config, self.current_image)
        self.awaited_leaders = FailoverPurgatory(self.reactor, config, self.current_image, self.peers)
        self.telemetry = self._make_telemetry()
        self.authorizer = self._make_authorizer(authorizer)
        needs: Needs = self  # mypy checks that a node has what all families of handlers need
        self.router, self.controller_router = Router(needs), Router(needs, listener="controller")
        server = partial(
            Server,
            self.reactor,
            config,
            network,
            slices=self.slices,
            tls=self.tls,
            logins=node_logins(self, Router(needs, "login"), offload),
            access=FullAccess if self.authorizer is None else self.authorizer.access,
            fetch_sessions=self.fetch_sessions,
        )
        self.server, self.controller_server = server(self.router), server(self.controller_router)

        self.current_image.follow(self._reconfigure, self._apply_to_replicas, self._log_changes)
        self.current_image.subscribe(
            self.listing.on_image,
            self.transactions.on_image,
            self.groups.on_image,
            self.lifecycle.on_image,
            *(() if self.quorum_controller is None else (self.quorum_controller.on_image,)),
            self.controller.on_image,
            self.awaited_leaders.on_image,
            self.server.client_quotas.on_image,
        )
        self.metrics = self._make_metrics()  # None if metrics.listen is not set

    # -- start and stop

    async def start(self) -> tuple[str, int]:
        """Opens the data directory, joins the quorum, registers, recovers the logs and serves.

        Returns the address bound for clients, that of the controller listener without the broker role.

        Raises:
            DirectoryInUse: another live process has the data directory.
            OSError: an address is in use or the disk fails.
            BarnabasError: the data directory belongs to another node or cluster, or is damaged; the controller rejected the node, or
                did not register it within initial.broker.registration.timeout.ms.
        """
        self.reactor.attach()
        self._alive = True
        if self.server.logins is not None:
            self.server.logins.start()
        try:
            if self.tls is not None:
                self.tls.open()
            if self.metrics is not None:
                await self.metrics.open(self._network)
            identity = self.log_dirs.open(self.config, self.reactor.rng)
            self.cluster_id, self.directory_id = identity.cluster_id, identity.directory_id
            self.clean_start = identity.clean
            self.quorum.open(identity.cluster_id, identity.directory_id, self.loader, clean=identity.clean)
            address = await self._listen()
            await self.quorum.start()
            if CONTROLLER in self.config.roles:
                self.lifecycle.register_controller()
            if BROKER in self.config.roles:
                await self._start_broker(identity)
        except BaseException:
            self._undo_open()
            self.kill()
            raise
        return address

    async def _listen(self) -> tuple[str, int]:
        """Binds all addresses, so that a wrong one fails the start early; refuses clients until the node can serve them."""
        addresses = [await self.server.bind(listener) for listener in self.config.listeners]
        controller_listener = self.config.controller_listener
        if controller_listener is not None:
            addresses.append(await self.controller_server.bind(controller_listener))
            await self.controller_server.accept()
            self.controller_server.serve()
        return addresses[0]

    async def _start_broker(self, identity: BrokerIdentity) -> None:
        await self.lifecycle.register(
            advertised_endpoints(self.config, self.server.addresses),
            identity.broker_epoch,
            on_session_over=self.replicas.on_session_over,
        )
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

    async def stop(self) -> None:
        """Hands leaderships over, closes connections, syncs and closes logs, writes the clean-shutdown file."""
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
            self._undo_open()
        self._alive = False
        self.log_dirs.release()
        if self.metrics is not None:
            self.metrics.close()

    def _end_control(self) -> None:
        if self.quorum_controller is not None:
            self.quorum_controller.close()
        self.controller.close()

    def _undo_open(self) -> None:
        """No partition log was opened: restores the clean-shutdown file if the start found one."""
        if self.log_dirs.main.identity is not None and not self._logs_open and self.reactor.failure is None:
            try:
                self.quorum.close()
                self.log_dirs.undo_open()
            except OSError as error:
                log.error("Node could not leave its directory as it was: node_id=%d error=%s", self.node_id, error)

    def kill(self) -> None:
        """Ends at once, as a crash does: writes nothing and notifies no other node."""
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
        if self.metrics is not None:
            self.metrics.close()

    def _on_failure(self, error: BaseException) -> None:
        """Stops serving and notifies the owner. The files on disk stay unchanged."""
        log.critical(
            "Node stops after a fatal error: node_id=%d error=%s",
            self.node_id,
            error,
            exc_info=isinstance(error, InvariantViolated),
        )
        self.kill()
        self.lifecycle.on_fatal(error)
        if self._on_fatal is not None:
            self._on_fatal(error)

    def _make_authorizer(self, settings: AuthorizerSettings | None) -> Authorizer | None:
        wanted = settings or self.config.authorizer()
        if wanted is None:
            return None
        from barnabas.broker.node.node_authorizer import node_authorizer

        return node_authorizer(wanted, self.current_image, self.lifecycle, self.quorum_controller)

    def _make_telemetry(self) -> ClientTelemetry | None:
        if self.config.metrics_address is None:
            return None
        from barnabas.broker.telemetry.clients import ClientTelemetry

        return ClientTelemetry(self.config.get_int("telemetry.max.bytes"))

    def _make_metrics(self) -> NodeMetrics | None:
        """Imports the modules of the metrics only if metrics.listen is set."""
        if self.config.metrics_address is None:
            return None
        from barnabas.broker.metrics.node_metrics import NodeMetrics

        return NodeMetrics(self)

    # -- log directories

    def _log_directory(self, disk: Disk) -> LogDirectory:
        return LogDirectory(
            disk,
            soon=self.reactor.soon,
            start=self._start_sync,
            on_failure=self._on_directory_failed,
        )

    def _start_sync(self, sync: Coroutine[object, object, None], name: str) -> None:
        if self.reactor.scope.stopping:
            sync.close()  # closing the logs syncs the rest
        else:
            self.reactor.scope.start(sync, name=name)

    def _on_directory_failed(self, directory: LogDirectory) -> None:
        """Takes the partitions of the directory offline. Without the metadata log the node stops."""
        if not self._alive:
            return
        self._on_elections(self.replicas.on_directory_failed(directory))
        if directory is not self.log_dirs.main:
            self.lifecycle.on_directory_failed(directory)
        elif directory.failure is not None:
            self._end_for(directory.failure)

    def _end_for(self, failure: OSError) -> None:
        """Stops answering, resigns as quorum leader and reports offline directories, so that others need not wait for a timeout."""
        if self.alone or not self._logs_open:
            self.reactor.fatal(failure)
            return
        self.server.abort()
        self.quorum.resign()
        self.lifecycle.heartbeat_now()
        self.reactor.call_later(RESIGN_GRACE_MS, lambda: self.reactor.fatal(failure))

    # -- metadata

    @property
    def image(self) -> MetadataImage:
        return self.current_image.image

    @property
    def failure(self) -> BaseException | None:
        """The error that stopped the node, else None."""
        return self.reactor.failure

    def _reconfigure(self, image: MetadataImage, delta: MetadataDelta) -> Work:
        if any(kind == BROKER_RESOURCE for kind, _ in delta.configs):
            self.config.reconfigure(image.cluster_config, image.broker_config(self.node_id))
            self.fetch_max_bytes = self.config.get_int("fetch.max.bytes")
            self.server.on_config()
            self.controller_server.on_config()
            if self.tls is not None:
                yield from self.tls.reload(changed_only=True)
        if self.telemetry is not None:
            for kind, name in delta.configs:
                if kind == CLIENT_METRICS_RESOURCE:
                    self.telemetry.configure(name, image.config(kind, name))
                    yield 4
        yield from ()

    def _apply_to_replicas(self, image: MetadataImage, delta: MetadataDelta) -> Work:
        if self._logs_open:
            yield from self.replicas.apply(image, delta)

    def _log_changes(self, image: MetadataImage, delta: MetadataDelta) -> Work:
        yield from log_changes(self.node_id, self.current_image.image, image, delta)

    def _on_elections(self, elections: list[LeadershipChange]) -> None:
        for topic, partition, leader_epoch, leads in elections:
            coordinator = self._coordinators.get(topic)
            if coordinator is not None and leads:
                coordinator.on_elected(partition, leader_epoch)
            elif coordinator is not None:
                coordinator.on_resigned(partition)
