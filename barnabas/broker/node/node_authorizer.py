"""The authorizer of a node, connected to its metadata. Imported only by nodes that have one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from barnabas.broker.authorization.audit_log import AuditLog
from barnabas.broker.authorization.authorizer import Authorizer
from barnabas.broker.config.authorizer_settings import AuthorizerSettings
from barnabas.broker.controller.controller import QuorumController
from barnabas.broker.front.server import Server
from barnabas.broker.image.current_image import CurrentImage


class ThisProcess(Protocol):
    """Identity of this process in registrations."""

    incarnation_id: bytes


def node_authorizer(
    settings: AuthorizerSettings,
    current: CurrentImage,
    servers: Sequence[Server],
    process: ThisProcess,
    controller: QuorumController | None,
) -> Authorizer:
    """The authorizer sees each published image first, and gives all connections their access.

    It decides once the image holds everything committed before the node started: with the registration of this process, as broker or
    controller, or because the controller is active.
    """

    def loaded() -> bool:
        image = current.image
        registered = {each.incarnation_id for each in image.brokers.values()}
        registered |= {each.incarnation_id for each in image.controllers.values()}
        return process.incarnation_id in registered or (controller is not None and controller.active)

    made = Authorizer(settings, AuditLog(), loaded)
    current.followers = (made.follow, *current.followers)
    current.subscribers = (made.on_image, *current.subscribers)
    for server in servers:
        server.access = made.access
    return made
