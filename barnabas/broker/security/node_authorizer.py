"""The authorizer of a node, connected to its metadata. Imported only by nodes that have one.

Driven by: the node, once. Emits: an authorizer that follows the published image and writes the audit log.
"""

from __future__ import annotations

from barnabas.broker.current_image import CurrentImage
from barnabas.broker.metadata.controller import QuorumController
from barnabas.broker.security.audit_log import AuditLog
from barnabas.broker.security.authorizer import Authorizer
from barnabas.broker.security.authorizer_keys import AuthorizerSettings
from barnabas.broker.server import Server

__all__ = ["node_authorizer"]


def node_authorizer(
    settings: AuthorizerSettings,
    current: CurrentImage,
    server: Server,
    controller_server: Server,
    controller: QuorumController | None,
) -> Authorizer:
    """Returns an authorizer that is the first to see each published image, and that gives all connections their access.

    It decides once the broker serves, or the controller is active: then the image holds everything that was committed before.
    """
    made = Authorizer(settings, AuditLog(), lambda: server.serving or (controller is not None and controller.active))
    current.followers = (made.follow, *current.followers)
    current.subscribers = (made.on_image, *current.subscribers)
    server.access = controller_server.access = made.access
    return made
