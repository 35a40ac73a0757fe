"""Random messages for the property tests: hypothesis strategies drawn from the declarations."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st
from kio.schema.errors import ErrorCode as KioErrorCode

from barnabas.protocol import wire
from barnabas.protocol.messages import header, internal
from barnabas.protocol.registry import API
from barnabas.protocol.schema import Message, RecordMessage

REQUESTS_AND_RESPONSES: list[type[Message]] = [c for api in API.values() for c in (api.request, api.response)]
HEADERS: list[type[Message]] = [header.RequestHeader, header.ResponseHeader]
RECORDS: list[type[RecordMessage]] = [
    value
    for value in vars(internal).values()
    if isinstance(value, type) and value.__module__ == internal.__name__ and issubclass(value, RecordMessage)
]

_TIMESTAMP_MS_MAX = 10**13  # kio turns timestamps into datetimes, which end with the year 9999
_INTEGERS = {
    "b": st.integers(-(2**7), 2**7 - 1),
    "h": st.integers(-(2**15), 2**15 - 1),
    "i": st.integers(-(2**31), 2**31 - 1),
    "q": st.integers(-(2**63), 2**63 - 1),
    "H": st.integers(0, 2**16 - 1),
    "I": st.integers(0, 2**32 - 1),
}
_TEXTS = st.text("aZ-é☃\U0001f3f0\0", max_size=6) | st.sampled_from(["x" * n for n in (126, 127, 128, 300)])
_BLOBS = st.binary(max_size=6) | st.sampled_from([bytes(n) for n in (126, 127, 5000)])


def versions(cls: type[Message] | type[RecordMessage]) -> range:
    first, last = cls.VERSIONS
    return range(first, last + 1)


@cache
def messages(cls: Any, version: int) -> st.SearchStrategy[Any]:
    """Messages whose every field of this version is drawn and whose others hold their defaults."""
    fields = wire.present(cls, version) + wire.tagged(cls, version)
    return st.builds(cls, **{f.name: _values(f.name, f.wire, f.nullable(version), version) for f in fields})


def _values(name: str, kind: Any, nullable: bool, version: int) -> st.SearchStrategy[Any]:
    values: st.SearchStrategy[Any]
    if name.endswith("error_code"):
        values = st.sampled_from([code.value for code in KioErrorCode])  # kio refuses codes it does not know
    elif name.endswith(("_time_ms", "_lifetime_ms", "_period_ms", "timestamp", "timestamp_ms")) and kind is wire.Int64:
        values = st.integers(0, _TIMESTAMP_MS_MAX)
    elif isinstance(kind, wire.Fixed):
        if kind is wire.Bool:
            values = st.booleans()
        elif kind is wire.Uuid:
            values = st.binary(min_size=16, max_size=16)
        elif kind is wire.Float64:
            values = st.floats(allow_nan=False)
        else:
            values = _INTEGERS[kind.code]
    elif isinstance(kind, wire.Text):
        values = _TEXTS
    elif isinstance(kind, (wire.Blob, wire.RecordsView)):
        values = _BLOBS
    elif isinstance(kind, wire.Array):
        size_max = 140 if isinstance(kind.element, wire.Fixed) else 2
        values = st.lists(_values("", kind.element, False, version), max_size=size_max)
    else:
        values = messages(kind, version)
    return st.none() | values if nullable else values
