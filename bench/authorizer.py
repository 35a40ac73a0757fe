"""Time of one decision of the authorizer, cached and not, with 10,000 ACLs: `python -m bench.authorizer`.

Goals: at most 2 microseconds cached, at most 30 microseconds not cached.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from barnabas.broker.metadata.image import AclImage, MetadataImage, difference
from barnabas.broker.security.audit_log import AuditLog
from barnabas.broker.security.authorizer import Authorizer
from barnabas.broker.security.authorizer_keys import AuthorizerSettings
from barnabas.broker.security.principal import Principal
from barnabas.protocol.acls import AclOperation, AclPermission, AclResourceType, PatternType
from barnabas.work import finished

ACLS = 10_000
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
        authorizer = Authorizer(AuthorizerSettings(), AuditLog(), lambda: True)
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


def _each_us(ask: Callable[[str], object], names: list[str]) -> float:
    began = time.perf_counter()
    for name in names:
        ask(name)
    return (time.perf_counter() - began) / len(names) * 1e6


if __name__ == "__main__":
    main()
