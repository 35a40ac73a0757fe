"""Configuration requests for topics, brokers, groups, loggers and client metrics (KIP-133, KIP-339, KIP-412).
A new resource type needs a row in `RESOURCE_TYPES`, and nothing else here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from barnabas.client.admin.requests import AdminRequests, raise_first
from barnabas.client.admin.types import ConfigEntry, ConfigSynonym
from barnabas.client.errors import IllegalState
from barnabas.protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

ResourceType = Literal["topic", "broker", "broker-logger", "client-metrics", "group"]


class _Kind(NamedTuple):
    code: int  # in DescribeConfigs and IncrementalAlterConfigs
    of_broker: bool  # its name is a node id, and only that broker knows its configs


RESOURCE_TYPES: Final[dict[ResourceType, _Kind]] = {
    "topic": _Kind(2, of_broker=False),
    "broker": _Kind(4, of_broker=True),
    "broker-logger": _Kind(8, of_broker=True),
    "client-metrics": _Kind(16, of_broker=False),
    "group": _Kind(32, of_broker=False),
}

_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_RESOURCES_PER_REQUEST: Final = 200  # a response has about 35 configs for each, with their synonyms


class ConfigResource(NamedTuple):
    """A configurable resource. `name` of a broker is its node id, "" for the default of all brokers."""

    type: ResourceType
    name: str


class ConfigAdmin(AdminRequests):
    """Configuration requests."""

    async def describe_configs(
        self,
        *,
        topic: str | None = None,
        broker: int | None = None,
        group: str | None = None,
        names: Sequence[str] | None = None,
    ) -> dict[str, ConfigEntry]:
        """Returns the configs of a topic, a group or a broker: all, or those in `names` (KIP-133).

        Without topic, group and broker: the dynamic defaults of all brokers.
        """
        resource = _resource(topic, broker, group)
        return (await self.describe_config_resources([resource], names=names))[resource]

    async def describe_config_resources(
        self,
        resources: Iterable[ConfigResource],
        *,
        names: Sequence[str] | None = None,
        synonyms: bool = False,
        documentation: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """Returns the configs of several resources: all or those in `names`, with synonyms or documentation if wanted.

        Raises:
            KafkaError: a resource does not exist (UNKNOWN_TOPIC_OR_PARTITION for a topic), or its broker does not
                answer.
        """
        found: dict[ConfigResource, dict[str, ConfigEntry]] = {}
        for node_id, several in _by_broker(resources).items():
            for start in range(0, len(several), _RESOURCES_PER_REQUEST):
                part = several[start : start + _RESOURCES_PER_REQUEST]
                response = await self._describe_part(part, node_id, names, synonyms, documentation, timeout_ms)
                raise_first(response.results)
                for result in response.results:
                    kind = next(name for name, kind in RESOURCE_TYPES.items() if kind.code == result.resource_type)
                    resource = ConfigResource(kind, result.resource_name)
                    found[resource] = {config.name: _entry(config) for config in result.configs}
        return found

    async def _describe_part(
        self,
        part: list[ConfigResource],
        node_id: int | None,
        names: Sequence[str] | None,
        synonyms: bool,
        documentation: bool,
        timeout_ms: int | None,
    ) -> DescribeConfigsResponse:
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=RESOURCE_TYPES[each.type].code,
                    resource_name=each.name,
                    configuration_keys=None if names is None else list(names),
                )
                for each in part
            ],
            include_synonyms=synonyms,
            include_documentation=documentation,
        )
        alone = (lambda r: r.results[0]) if len(part) == 1 else None
        response: DescribeConfigsResponse = await self._retried(request, alone, node_id=node_id, timeout_ms=timeout_ms)
        return response

    async def list_config_resources(self, types: Iterable[ResourceType] = ()) -> list[ConfigResource]:
        """Returns the resources of these types (default: all); groups and client metrics only with configs.

        Raises UnsupportedByBroker before Kafka 4.1 (KIP-1142).
        """
        request = ListConfigResourcesRequest(resource_types=[RESOURCE_TYPES[each].code for each in types])
        response: ListConfigResourcesResponse = await self._retried(request)
        names = {kind.code: name for name, kind in RESOURCE_TYPES.items()}
        return [
            ConfigResource(names[each.resource_type], each.resource_name)
            for each in response.config_resources
            if each.resource_type in names
        ]

    async def alter_configs(
        self,
        configs: Mapping[str, str | None],
        *,
        topic: str | None = None,
        broker: int | None = None,
        group: str | None = None,
    ) -> None:
        """Sets configs of a topic, group or broker (None: the default), all or none (KIP-339). Raises KafkaError."""
        await self.alter_config_resource(_resource(topic, broker, group), configs)

    async def alter_config_resource(
        self,
        resource: ConfigResource,
        configs: Mapping[str, str | None],
        *,
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Changes configs of one resource, all or none; others stay unchanged (KIP-339).

        Args:
            configs: the new values; None restores the default.
            append, subtract: values, separated by commas, to add to lists or to remove from them.
            validate_only: checks without changes.

        Raises:
            KafkaError: a config is unknown, is no list, or its value is invalid (INVALID_CONFIG). Nothing has changed
                then.
        """
        changes = [
            *((name, _DELETE if value is None else _SET, value) for name, value in configs.items()),
            *((name, _APPEND, value) for name, value in (append or {}).items()),
            *((name, _SUBTRACT, value) for name, value in (subtract or {}).items()),
        ]
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=RESOURCE_TYPES[resource.type].code,
                    resource_name=resource.name,
                    configs=[
                        AlterableConfig(name=name, config_operation=operation, value=value)
                        for name, operation, value in changes
                    ],
                )
            ],
            validate_only=validate_only,
        )
        node_id = _node_of(resource)
        await self._retried(request, lambda r: r.responses[0], node_id=node_id, timeout_ms=timeout_ms)


def _resource(topic: str | None, broker: int | None, group: str | None) -> ConfigResource:
    if group is not None:
        return ConfigResource("group", group)
    if topic is not None:
        return ConfigResource("topic", topic)
    return ConfigResource("broker", "" if broker is None else str(broker))


def _node_of(resource: ConfigResource) -> int | None:
    """The broker to ask: only a broker knows its configs; None: any. Raises IllegalState for an invalid node id."""
    if not RESOURCE_TYPES[resource.type].of_broker or not resource.name:
        return None
    if not resource.name.isascii() or not resource.name.isdigit():
        raise IllegalState(f"{resource.name!r} is no node id of a broker, a number such as 1")
    return int(resource.name)


def _by_broker(resources: Iterable[ConfigResource]) -> dict[int | None, list[ConfigResource]]:
    found: dict[int | None, list[ConfigResource]] = {}
    for resource in dict.fromkeys(resources):
        found.setdefault(_node_of(resource), []).append(resource)
    return found


def _entry(config: DescribeConfigsResourceResult) -> ConfigEntry:
    return ConfigEntry(
        config.name,
        config.value,
        config.config_source,
        config.read_only,
        config.is_sensitive,
        tuple(ConfigSynonym(each.name, each.value, each.source) for each in config.synonyms),
        config.documentation,
    )
