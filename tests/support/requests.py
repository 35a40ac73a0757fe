"""Requests by the names of Kafka's schemas, `request_of("OffsetDelete", group_id="g", topics=[{"name": "t", …}])`, and their frames.

A nested structure is a dict with the names of its fields. An unknown name raises TypeError. So a test imports no class of a message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from struct import pack
from typing import Any

from barnabas.protocol import registry
from barnabas.protocol.messages.header import RequestHeader
from barnabas.protocol.schema import decode, encode
from barnabas.protocol.wire import Array

Fields = dict[str, Any]  # a nested structure

_APIS = {api.name: api for api in registry.API.values()}


def request_of(api: str, **fields: Any) -> Any:
    """The request of an API; fields that are not named have their defaults."""
    declared: Any = _APIS[api].request  # mypy takes no class with __hash__ = None for hashable
    return _maker(declared)(fields)


@cache
def _maker(declared: Any) -> Callable[[Fields], Any]:
    """Makes a structure of its fields; what it holds is made likewise."""
    wires = {each.name: each.wire.element if isinstance(each.wire, Array) else each.wire for each in declared.FIELDS}
    makers = {name: _maker(wire) for name, wire in wires.items() if isinstance(wire, type)}
    if not makers:
        return lambda fields: declared(**fields)

    def make(fields: Fields) -> Any:
        made = dict(fields)
        for name, inner in makers.items():
            value = made.get(name)
            if isinstance(value, dict):
                made[name] = inner(value)
            elif isinstance(value, list):
                made[name] = [inner(each) if isinstance(each, dict) else each for each in value]
        return declared(**made)

    return make


def frame_of(request: Any, version: int, correlation: int, client_id: str | None) -> bytes:
    """A request with its header and its length."""
    key = type(request).API_KEY
    header = RequestHeader(
        request_api_key=key, request_api_version=version, correlation_id=correlation, client_id=client_id
    )
    body = encode(header, registry.request_header_version(key, version)) + encode(request, version)
    return pack(">i", len(body)) + body


def answer_in(frame: bytes, api_key: int, version: int) -> Any:
    """The answer in a frame without its length."""
    at = 4 + registry.response_header_version(api_key, version)
    return decode(registry.API[api_key].response, frame, version, at)


def codes_in(answer: Any) -> set[int]:
    """All error codes of an answer, at any depth."""
    found: set[int] = set()
    stack = [answer]
    while stack:
        item = stack.pop()
        for declared in item.FIELDS:
            value = getattr(item, declared.name)
            if declared.name in ("error_code", "partition_error_code"):
                found.add(value)
            elif isinstance(value, list):
                if value and hasattr(value[0], "FIELDS"):
                    stack.extend(value)
            elif hasattr(value, "FIELDS"):
                stack.append(value)
    return found
