"""The authorizer of a node, connected to its metadata. Imported only by nodes that have one."""

from __future__ import annotations

from typing import Protocol

from barnabas.broker.authorization.authorizer import Authorizer
from barnabas.broker.config.authorizer_settings import AuthorizerSettings
from barnabas.broker.controller.controller import QuorumController
from barnabas.broker.image.current_image import CurrentImage


class ThisProcess(Protocol):
    """Identity of this process in registrations."""

    incarnation_id: bytes


def node_authorizer(
    settings: AuthorizerSettings,
    current: CurrentImage,
    process: ThisProcess,
    controller: QuorumController | None,
) -> Authorizer:
    """The authorizer sees each published image before the parts that subscribe later.

    It decides once the image holds everything committed before the node started: with the registration of this process, as broker or
    controller, or because the controller is active.
    """

    def loaded() -> bool:
        image = current.image
        registered = {each.incarnation_id for each in image.brokers.values()}
        registered |= {each.incarnation_id for each in image.controllers.values()}
        return process.incarnation_id in registered or (controller is not None and controller.active)

    made = Authorizer(settings, loaded)
    current.follow(made.follow)
    current.subscribe(made.on_image)
    return made
