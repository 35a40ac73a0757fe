"""The router: which listener serves what, and whose handlers those are."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from barnabas.broker.node import Node
from barnabas.broker.router import Router, handles
from barnabas.errors import RemoteProtocolError
from barnabas.protocol.messages.metadata import MetadataRequest
from barnabas.protocol.messages.quorum import VoteRequest
from barnabas.protocol.registry import API, Api

LISTENERS = ("broker", "controller")
SERVED = [pytest.param(api, name, id=f"{api.name}-{name}") for api in API.values() for name in sorted(api.listeners)]


@pytest.mark.parametrize(("api", "listener"), SERVED)
async def test_everything_advertised_has_a_handler_in_every_version(api: Api, listener: str, node: Node) -> None:
    router = Router(node, listener)
    if find_spec(f"barnabas.broker.handlers.{router.family(api)}") is None:
        pytest.skip("to come")
    for version in range(api.versions[0], api.versions[1] + 1):
        route = router.route(api.key, version)
        assert (api.key, listener) in route.handler.__handles__  # type: ignore[attr-defined]  # set by @handles


async def test_a_listener_serves_nothing_of_the_other(node: Node) -> None:
    with pytest.raises(RemoteProtocolError, match="Vote is not served on this listener"):
        Router(node).route(52, 0)
    with pytest.raises(RemoteProtocolError, match="Metadata is not served on this listener"):
        Router(node, "controller").route(3, 0)


async def test_unknown_keys_and_versions_are_named(node: Node) -> None:
    with pytest.raises(RemoteProtocolError, match="unknown API key 9999"):
        Router(node).route(9999, 0)
    with pytest.raises(RemoteProtocolError, match="Metadata version 99 is not served, only 0 to 13"):
        Router(node).route(3, 99)


def test_one_function_may_serve_several_requests_and_listeners() -> None:
    @handles(MetadataRequest, VoteRequest)
    @handles(VoteRequest, listener="controller")
    def handler() -> None:
        """Marked only."""

    assert handler.__handles__ == {(3, "broker"), (52, "broker"), (52, "controller")}  # type: ignore[attr-defined]  # set by @handles
