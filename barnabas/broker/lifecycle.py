"""Lifecycle: whose data directory this is, and how a broker comes into the cluster and leaves it.

Driven by: `Node.start` and `Node.stop`, in their order: open_directory, register, unfence; shut_down.
Emits: meta.properties in a new directory, registration records through the controller, the broker epoch for the
clean-shutdown file; a refusal that says what to do where the directory is not this node's.

Every start registers anew: a fresh incarnation id; a broker epoch that is the offset of the registration record; the epoch before
it from the clean-shutdown file, −1 where the last stop was none. Fenced until `unfence`, so that no partition leads before
its log is recovered.

Invariants: the clean-shutdown file is taken away, durably, before any log is written to; a directory of another node, cluster
or format is never written to. Follows KIP-631, KIP-858 (directory ids), KIP-966 (previous broker epoch).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.config import Endpoint
from barnabas.broker.metadata.decision import ClusterView, MetadataDecision
from barnabas.broker.metadata.features import supported_features
from barnabas.broker.metadata.registration import (
    fence_broker,
    register_broker,
    register_controller,
    shut_down_broker,
    unfence_broker,
)
from barnabas.broker.quorum.metadata_log import METADATA_DIRECTORY
from barnabas.errors import BarnabasError, BrokerError
from barnabas.protocol.messages.cluster import (
    BrokerRegistrationRequest,
    ControllerRegistrationRequest,
    RegistrationListener,
)
from barnabas.storage.checkpoints import (
    META_PROPERTIES,
    MalformedCheckpoint,
    MetaProperties,
    decode_uuid,
    encode_uuid,
    read_meta_properties,
    take_clean_shutdown,
    write_clean_shutdown,
    write_meta_properties,
)

if TYPE_CHECKING:
    from barnabas.broker.node import Node

__all__ = ["Lifecycle", "WrongDirectory"]

log = logging.getLogger(__name__)

CLUSTER_ID_KEY: Final = "cluster.id"  # ours: which cluster a directory must belong to, or is made for


class WrongDirectory(BarnabasError):
    """The data directory is not this node's; nothing in it was changed."""


class Lifecycle:
    """See the module.

    Attributes:
        clean: whether the last stop was clean; known after `open_directory`.
        broker_epoch: of the present registration, -1 before it.
        incarnation_id: of this process.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.clean = False
        self.broker_epoch = -1
        self.incarnation_id = b""
        self._previous_broker_epoch: int | None = None
        self._waiting: asyncio.Future[Any] | None = None  # for the controller's answer to a step of start or stop

    def open_directory(self) -> int | None:
        """Identifies the directory, or makes a new one's identity. To be called with its lock held.

        Returns:
            The broker epoch of the last clean stop; None where the last stop was not clean (or there was none).

        Raises:
            WrongDirectory: it belongs to another node or cluster, or holds a log and no meta.properties.
            OSError: the disk failed.
        """
        node = self.node
        expected = node.config.static.get(CLUSTER_ID_KEY)
        try:
            meta = read_meta_properties(node.disk)
        except MalformedCheckpoint as error:
            raise WrongDirectory(f"cannot tell whose data directory this is: {error}") from error
        if meta is None:
            meta = self._new_directory(expected)
        if meta.node_id != node.node_id:
            raise WrongDirectory(
                f"this data directory belongs to node {meta.node_id} ({META_PROPERTIES}), this is node {node.node_id}: "
                f"start with node.id={meta.node_id}, or give another directory"
            )
        if expected is not None and meta.cluster_id != expected:
            raise WrongDirectory(
                f"this data directory belongs to cluster {meta.cluster_id} ({META_PROPERTIES}), not to {expected}: "
                f"give the directory of this cluster, or an empty one"
            )
        try:
            node.directory_id = decode_uuid(meta.directory_id)
        except ValueError as error:
            raise WrongDirectory(f"{META_PROPERTIES} has a directory.id that is none: {error}") from error
        node.cluster_id = meta.cluster_id
        self._previous_broker_epoch = take_clean_shutdown(node.disk)
        self.clean = self._previous_broker_epoch is not None
        return self._previous_broker_epoch

    def _new_directory(self, cluster_id: str | None) -> MetaProperties:
        node = self.node
        if node.disk.exists(METADATA_DIRECTORY):
            raise WrongDirectory(
                f"there is a metadata log but no {META_PROPERTIES}: restore that file, or give an empty directory"
            )
        meta = MetaProperties(
            cluster_id=cluster_id or encode_uuid(node.rng.uuid()),
            node_id=node.node_id,
            directory_id=encode_uuid(node.rng.uuid()),
        )
        write_meta_properties(node.disk, meta)
        return meta

    def give_back(self) -> None:
        """Undoes `open_directory`: the directory is not for this broker, and nothing was written to its logs."""
        if self._previous_broker_epoch is not None:
            write_clean_shutdown(self.node.disk, self._previous_broker_epoch)

    # --- coming ---------------------------------------------------------------------------------------------------

    async def register(self, address: tuple[str, int], previous_broker_epoch: int) -> None:
        """Registers this process, fenced. `address` is what the first listener really bound.

        Raises:
            BrokerError: the controller refuses.
        """
        node = self.node
        self.incarnation_id = node.rng.uuid()
        endpoints = self._endpoints(address)
        features = supported_features()
        controller = ControllerRegistrationRequest(
            controller_id=node.node_id, incarnation_id=self.incarnation_id, features=features
        )
        broker = BrokerRegistrationRequest(
            broker_id=node.node_id,
            cluster_id=node.cluster_id,
            incarnation_id=self.incarnation_id,
            listeners=[
                RegistrationListener(
                    name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol_id
                )
                for each in endpoints
            ],
            features=features,
            rack=node.config.get_str("broker.rack"),
            log_dirs=[node.directory_id],
            previous_broker_epoch=previous_broker_epoch,
        )

        def decide(view: ClusterView) -> MetadataDecision[int]:
            first = register_controller(controller).records
            then = register_broker(replace(view, next_offset=view.next_offset + len(first)), broker)
            return MetadataDecision(then.answer.broker_epoch, [*first, *then.records])

        self.broker_epoch = await self._submit(decide)

    def _endpoints(self, address: tuple[str, int]) -> list[Endpoint]:
        """What clients are told: advertised.listeners, with ports asked for as 0 replaced by the one that was bound."""
        config = self.node.config
        found = []
        for index, endpoint in enumerate(config.advertised_listeners):
            bound = config.listeners[index] if index < len(config.listeners) else endpoint
            host = endpoint.host or address[0]
            if host in ("0.0.0.0", "::"):
                host = "127.0.0.1" if host == "0.0.0.0" else "::1"  # nobody can connect to "every interface"
            port = endpoint.port or (address[1] if bound is config.listeners[0] else bound.port)
            found.append(Endpoint(endpoint.name, host, port, endpoint.security_protocol))
        return found

    async def unfence(self) -> None:
        """Everything is ready to serve: the broker may lead from here on."""
        await self._submit(lambda view: MetadataDecision(None, unfence_broker(view, self.node.node_id)))

    # --- going ----------------------------------------------------------------------------------------------------

    async def shut_down(self) -> int:
        """Controlled shutdown: gives up every leadership and is fenced. Returns the broker epoch that then was."""

        def leave(view: ClusterView) -> MetadataDecision[None]:
            return MetadataDecision(None, shut_down_broker(view, self.node.node_id))

        def fence(view: ClusterView) -> MetadataDecision[None]:
            return MetadataDecision(None, fence_broker(view, self.node.node_id))

        await self._submit(leave)
        await self._submit(fence)
        return self.broker_epoch

    def on_fatal(self, error: BaseException) -> None:
        """The node gave up: the controller will answer no more, so that a start or stop that waits for it ends here."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    async def _submit(self, decide: Callable[[ClusterView], MetadataDecision[Any]]) -> Any:
        if self.node.failure is not None:
            raise self.node.failure
        waiting: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting = waiting

        def done(answer: Any) -> None:
            if waiting.done():
                return
            if isinstance(answer, BrokerError):
                waiting.set_exception(answer)
            else:
                waiting.set_result(answer)

        self.node.controller.submit(decide, done)
        return await waiting
