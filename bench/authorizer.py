"""Time of one decision of the authorizer, cached and not, with 10,000 ACLs; and of a fetch of a large session: `python -m bench.authorizer`.

Goals: at most 2 microseconds cached, at most 30 microseconds not cached; a fetch asks nothing about idle partitions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from types import GeneratorType
from typing import cast

from barnabas.broker.api.call import Call
from barnabas.broker.api.principal import Principal
from barnabas.broker.authorization.authorizer import Authorizer
from barnabas.broker.config.authorizer_settings import AuthorizerSettings
from barnabas.broker.handlers.fetch import fetch
from barnabas.broker.image.image import AclImage, MetadataImage, difference
from barnabas.protocol.acls import AclOperation, AclPermission, AclResourceType, PatternType
from barnabas.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from barnabas.protocol.messages.metadata import ApiVersionsRequest
from barnabas.work import finished
from tests.support.broker.nodes import Nodes

ACLS = 10_000
PARTITIONS = 10_000
FETCHES = 50
SETTINGS = {
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super_users": "User:admin;User:ANONYMOUS",
}
SHAPES: dict[str, Callable[[int], AclImage]] = {
    "a topic for each user": lambda n: _acl(f"team-{n % 1000}-topic-{n}", f"User:user-{n}"),
    "a prefix for each user": lambda n: _acl(f"team-{n}-", f"User:user-{n}", PatternType.PREFIXED),
    "every user on one topic": lambda n: _acl("team-7-topic-7", f"User:user-{n}"),
    "every user on *": lambda n: _acl("*", f"User:user-{n}"),
    "prefixes of 249 lengths": lambda n: _acl("x" * (n % 249 + 1) + f"{n}", f"User:user-{n}", PatternType.PREFIXED),
}


def _acl(name: str, principal: str, pattern: PatternType = PatternType.LITERAL) -> AclImage:
    return AclImage(AclResourceType.TOPIC, name, pattern, principal, "*", AclOperation.READ, AclPermission.ALLOW)


def main() -> None:
    for shape, acl in SHAPES.items():
        image = MetadataImage(acls={n.to_bytes(16, "big"): acl(n) for n in range(ACLS)})
        authorizer = Authorizer(AuthorizerSettings(), lambda: True)
        delta = finished(difference(MetadataImage(), image))
        began = time.perf_counter()
        finished(authorizer.follow(image, delta))
        built_ms = (time.perf_counter() - began) * 1e3
        authorizer.on_image(MetadataImage(), image, delta)
        access = authorizer.access(Principal("User", "user-7"), "127.0.0.1").asked_by(1)
        names = [f"team-7-topic-7{'x' * 200 if 'lengths' in shape else ''}{n}" for n in range(4_000)]
        uncached_us = _each_us(partial(access.operations, AclResourceType.TOPIC), names) / 8
        access.allows(AclOperation.READ, AclResourceType.TOPIC, "team-7-topic-7")
        same = ["team-7-topic-7"] * 200_000
        granted = access.allows(AclOperation.READ, AclResourceType.TOPIC, "team-7-topic-7")
        cached_us = _each_us(partial(access.allows, AclOperation.READ, AclResourceType.TOPIC), same)
        word = "allowed" if granted else "denied, without its line"
        print(f"{shape}: built in {built_ms:.0f} ms, uncached {uncached_us:.1f} us, cached ({word}) {cached_us:.2f} us")


async def _session() -> None:
    """Prints the CPU time of a fetch of a session of idle partitions, by a client whose permissions have not changed."""
    nodes = Nodes()
    node = await nodes.start(**SETTINGS)
    peer = await nodes.peer(node)
    await peer.call(ApiVersionsRequest(), 0)
    (connection,) = node.server.connections
    connection.authenticated(Principal("User", "admin"))
    await peer.create("t", PARTITIONS)
    named = [FetchPartition(partition=n, fetch_offset=0, partition_max_bytes=1) for n in range(PARTITIONS)]

    def fetched(session_id: int, epoch: int, *topics: FetchTopic) -> FetchResponse:
        request = FetchRequest(session_id=session_id, session_epoch=epoch, max_wait_ms=0, topics=list(topics))
        answer = fetch(node, Call(request, 11, 1, "bench", connection, "127.0.0.1"))
        return cast("FetchResponse", finished(answer) if isinstance(answer, GeneratorType) else answer)

    session_id, epoch = fetched(0, 0, FetchTopic(topic="t", partitions=named)).session_id, 1
    while fetched(session_id, epoch).responses:  # the node opens its new partitions
        epoch += 1
        await asyncio.sleep(1)
    began = time.thread_time()
    for more in range(FETCHES):
        fetched(session_id, epoch + 1 + more)
    each_us = (time.thread_time() - began) / FETCHES * 1e6
    print(f"a fetch of a session of {PARTITIONS} idle partitions: {each_us:.0f} us")
    await nodes.end()


def _each_us(ask: Callable[[str], object], names: list[str]) -> float:
    began = time.perf_counter()
    for name in names:
        ask(name)
    return (time.perf_counter() - began) / len(names) * 1e6


if __name__ == "__main__":
    main()
    asyncio.run(_session())
