"""Versions: brokers that serve clients as an older release of Apache Kafka does, `Cluster(as_version="3.6")`.

Such a broker announces the APIs, versions and features of the release, as far as it serves them itself. A request above them gets what
Kafka answers: ApiVersions an answer of version 0 with UNSUPPORTED_VERSION (KIP-511), all others a closed connection. A new cluster has
the release's levels of `transaction.version`, `group.version` and `eligible.leader.replicas.version`, so older brokers know neither
Transactions V2 nor consumer groups of KIP-848. The listener between brokers is not limited.

`kafka_releases.py` has the facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from barnabas.broker.api.call import Answer, Call
from barnabas.broker.api.router import Interceptor, Route, Serve
from barnabas.broker.controller.core.features import METADATA_VERSION
from barnabas.errors import RemoteProtocolError
from barnabas.protocol import registry
from barnabas.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from barnabas.testing.errors import KitError, unknown
from barnabas.testing.extension import Commands, Extension
from barnabas.testing.faults.table import is_internal
from barnabas.testing.kafka_releases import API_CHANGES, FEATURE_CHANGES

NEWEST: Final = list(API_CHANGES)[-1]


@dataclass(frozen=True)
class Release:
    """What brokers of one release serve to clients, as far as ours can.

    Attributes:
        name: for example "3.6".
        apis: API key → announced versions, inclusive.
        served: API key → served versions, inclusive.
        features: name → (lowest, highest, finalized) level.
    """

    name: str
    apis: Mapping[int, tuple[int, int]]
    served: Mapping[int, tuple[int, int]]
    features: Mapping[str, tuple[int, int, int]]


def check_release(name: object) -> str:
    """Returns the name of a release. Raises KitError for an unknown one."""
    if isinstance(name, str) and name in API_CHANGES:
        return name
    if isinstance(name, float):
        raise KitError(f"as_version={name!r}: write a text, for example as_version='{NEWEST}'")
    releases = list(API_CHANGES)
    raise KitError(
        f"as_version: {unknown('release of Kafka', name, releases)}; the releases are {releases[0]} to {NEWEST} without bug-fix numbers"
    )


@cache
def kafka_release(name: str) -> Release:
    """The release of that name, which `check_release` has accepted."""
    theirs: dict[int, tuple[int, int]] = {}
    features: dict[str, tuple[int, int, int]] = {}
    for each, changes in API_CHANGES.items():
        for key, versions in changes.items():
            if versions is None:
                del theirs[key]
            else:
                theirs[key] = versions
        features.update(FEATURE_CHANGES.get(each, {}))
        if each == name:
            break
    ours = {key: api for key, api in registry.API.items() if key in theirs and "broker" in api.listeners}
    served = {key: _common(api.versions, theirs[key]) for key, api in ours.items()}
    # Kafka announces Produce 0 to librdkafka (KAFKA-18659), also where it serves less.
    from_0 = {**theirs, registry.PRODUCE_KEY: (0, theirs[registry.PRODUCE_KEY][1])}
    apis = {key: _common(api.advertised, from_0[key]) for key, api in ours.items()}
    return Release(
        name,
        {key: each for key, each in apis.items() if each[0] <= each[1]},
        {key: each for key, each in served.items() if each[0] <= each[1]},
        features,
    )


def _common(ours: tuple[int, int], theirs: tuple[int, int]) -> tuple[int, int]:
    return max(ours[0], theirs[0]), min(ours[1], theirs[1])


class DatedBrokers(Extension):
    """Gives every broker of a cluster its release before it starts."""

    def __init__(self, name: str) -> None:
        self.name = name

    def before_start(self, broker_id: int) -> Commands:
        """For the kit: the release of a broker that starts."""
        return [("set_release", {"name": self.name})]


def limiting_to(limits: Release) -> Interceptor:
    """Serves clients only what the release serves. Another request closes the connection."""

    def limit(serve: Serve, route: Route, call: Call[Any]) -> Answer:
        if is_internal(call):
            return serve(route, call)
        low, high = limits.served.get(call.api_key, (1, 0))
        if not low <= call.version <= high:
            name = registry.API[call.api_key].name
            raise RemoteProtocolError(f"Kafka {limits.name} does not serve {name} version {call.version}")
        response = serve(route, call)
        return _limited(response, limits) if isinstance(response, ApiVersionsResponse) else response

    return limit


def _limited(response: ApiVersionsResponse, limits: Release) -> ApiVersionsResponse:
    """The answer to ApiVersions as of the release."""
    response.api_keys = [
        ApiVersion(api_key=each.api_key, min_version=versions[0], max_version=versions[1])
        for each in response.api_keys
        if (versions := limits.apis.get(each.api_key)) is not None
    ]
    response.supported_features = [
        SupportedFeatureKey(name=each.name, min_version=levels[0], max_version=levels[1])
        for each in response.supported_features
        if (levels := limits.features.get(each.name)) is not None
    ]
    response.finalized_features = [
        each if each.name != METADATA_VERSION else _metadata_version(levels[2])
        for each in response.finalized_features
        if (levels := limits.features.get(each.name)) is not None
    ]
    return response


def _metadata_version(level: int) -> FinalizedFeatureKey:
    return FinalizedFeatureKey(name=METADATA_VERSION, max_version_level=level, min_version_level=level)
