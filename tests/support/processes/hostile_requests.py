"""Makes requests with one hostile field from the message declarations; a seed always gives the same requests.

`HostileRequests.next()` walks the declaration of a request, writes a plausible value for every field and notes where
each value lies. One of these places is then replaced: a length or count that is negative, huge or off by one, null
where it is not allowed, a number at its bounds, bytes that are no UTF-8, a name twice, an element a hundred times, an
unknown tag. Some requests stay valid, some are cut short, or name a version or an API that is not served.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import crc32c

from barnabas.errors import RemoteProtocolError
from barnabas.protocol import registry
from barnabas.protocol.messages.fetch import FetchRequest
from barnabas.protocol.messages.groups import ConsumerProtocolSubscription
from barnabas.protocol.messages.produce import ProduceRequest
from barnabas.protocol.primitives import encode_uvarint
from barnabas.protocol.schema import decode, encode_versioned
from barnabas.protocol.wire import Array, Blob, Bool, Field, Fixed, RecordsView, Text, present, tagged
from tests.support.processes.hostile_values import (
    BATCH_FIELDS,
    CONFIGS,
    GROUPS,
    HOSTILE_COUNTS,
    HOSTILE_TEXTS,
    HOSTILE_UVARINTS,
    INT_BITS,
    NUMBERS,
    TEXTS,
    TOPICS,
    TRANSACTIONS,
    batches,
    fits,
    hostile_tags,
    is_text_broken,
    uvarint_size,
)

# Valid, and fatal to what the fuzzer measures: so many partitions that the disk is full, or the end of the broker.
_PARTITIONS_MAX = 40
_COUNTS_OF_PARTITIONS = ("num_partitions", "count")
_SHARE_VALID = 0.12
_UNSERVED = tuple(
    key for key in (-1, 4, 5, 6, 7, 34, 38, 58, 76, 80, 84, 999, 32_767, -32_768) if key not in registry.API
)
_SHARE_OF_THE_FRAME = 0.08  # cut short, longer than it says, in a wrong version, of an unknown API


class Shot(NamedTuple):
    """One request as bytes, and its permitted outcomes."""

    number: int
    api: registry.Api
    version: int
    correlation: int
    frame: bytes  # with its length
    what: str  # what is hostile in it
    closes: bool  # the bytes break the protocol: the broker closes the connection
    cut: bool  # the frame is never whole
    may_wait: bool  # the broker may rightly answer late, or not at all


class _Spot(NamedTuple):
    """A place within an encoded request."""

    kind: str  # fixed, text, blob, array, tags or struct
    start: int
    end: int
    name: str
    flexible: bool
    wire: Any
    elements: tuple[tuple[int, int], ...] = ()


@dataclass
class RequestTargets:
    """The objects that valid requests name, with the ids that the broker assigned.

    Attributes:
        producers: id and epoch of each of TRANSACTIONS.
        groups: a classic group, one of the consumer protocol, and one that is empty at first.
        members: member id and generation or member epoch in each group.
    """

    topic_ids: list[bytes] = field(default_factory=lambda: [bytes(16)])
    producers: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)] * len(TRANSACTIONS))
    groups: list[str] = field(default_factory=lambda: list(GROUPS))
    members: list[tuple[str, int]] = field(default_factory=lambda: [("", 0)] * len(GROUPS))


class HostileRequests:
    """A stream of hostile requests.

    Args:
        seed: of every decision.
        world: what exists; its fields may change between two requests.
    """

    def __init__(self, seed: int, world: RequestTargets) -> None:
        self.world = world
        self._rng = random.Random(seed)
        self._apis = [api for api in registry.API.values() if "broker" in api.listeners]
        self._number = 0
        self._spots: list[_Spot] = []
        self._out = bytearray()
        self._version = 0
        self._producer = 0  # of TRANSACTIONS, of which the present request speaks
        self._member = 0  # of the groups, likewise
        self.batches = batches()
        self._subscription = encode_versioned(ConsumerProtocolSubscription(topics=list(TOPICS)), 3)

    def next(self) -> Shot:
        rng = self._rng
        self._number += 1
        # Every API has its turn, whatever the seed.
        api = self._apis[self._number % len(self._apis)]
        version = rng.randint(*api.versions)
        body = self._body(api, version)
        correlation = rng.randrange(2**31)
        client_id: bytes | None = b"fuzz"
        header_tags = b"\0"
        what = "valid"
        key, cut = api.key, False
        draw = rng.random()
        if draw < _SHARE_OF_THE_FRAME:
            what = rng.choice(("cut", "shorter", "longer", "version", "api key", "client id", "header tags", "length"))
            if what == "shorter" and body:
                del body[rng.randrange(len(body)) :]
            elif what == "longer":
                body += rng.randbytes(rng.choice((1, 4, 300)))
            elif what == "version":
                version = rng.choice((-1, api.versions[0] - 1, api.versions[1] + 1, 99, 32_767, -32_768))
            elif what == "api key":
                key = rng.choice(_UNSERVED)
            elif what == "client id":
                client_id = rng.choice((None, b"", *HOSTILE_TEXTS))
            elif what == "header tags":
                header_tags = rng.choice(hostile_tags(rng))
        elif draw > _SHARE_OF_THE_FRAME + _SHARE_VALID and self._spots:
            spot = rng.choice(self._spots)
            replacement, how = self._hostile(spot, body)
            body[spot.start : spot.end] = replacement
            what = f"{spot.name} ({spot.kind}): {how}"
        known = registry.API.get(key)
        served = known is not None and known in self._apis and known.serves(version)
        flexible = known is not None and registry.request_header_version(key, version) >= 2
        header = struct.pack(">hhi", key, version, correlation)
        header += struct.pack(">h", -1) if client_id is None else struct.pack(">h", len(client_id)) + client_id
        if flexible:
            header += header_tags
        frame = struct.pack(">i", len(header) + len(body)) + header + body
        if what == "cut":
            frame, cut = frame[: rng.randrange(len(frame))], True
        elif what == "length":
            frame = struct.pack(">i", rng.choice((-1, 0, 3, 2**31 - 1, -(2**31), 101 * 1024 * 1024))) + frame[4:]
        closes, may_wait = True, False
        if key == registry.API_VERSIONS_KEY and known is not None and not served:
            closes = what not in ("version",)
            version = 0
        elif served and what not in ("length", "header tags") and not is_text_broken(client_id):
            assert known is not None
            closes, may_wait = _judge(known, version, body)
        elif what == "header tags":
            may_wait, closes = True, False  # either is right: the tags decide, and both are looked at
        if what == "length":
            closes = True
        return Shot(self._number, api, version, correlation, bytes(frame), what, closes, cut, may_wait)

    # -- a valid body

    def _body(self, api: registry.Api, version: int) -> bytearray:
        self._out = bytearray()
        self._spots = []
        self._version = version
        self._producer = self._rng.randrange(len(TRANSACTIONS))
        self._member = self._rng.randrange(len(GROUPS))
        # Requests that end what others build on ask mostly for something of their own.
        apart = self._rng.random() < 0.85
        if api.name in ("JoinGroup", "LeaveGroup", "DeleteGroups") and apart:
            self._member = len(GROUPS) - 1
        elif api.name in ("InitProducerId", "EndTxn") and apart:
            self._producer = len(TRANSACTIONS) - 1
        elif api.name == "ConsumerGroupHeartbeat" and apart:
            self._member = 1
        self._struct(api.request, api.is_flexible(version), api.name)
        return self._out

    def _struct(self, cls: type[Any], flexible: bool, api: str) -> None:
        for each in present(cls, self._version):
            self._value(each, cls.__name__, flexible and each.compact, api)
        if flexible:
            start = len(self._out)
            chosen = [each for each in tagged(cls, self._version) if self._rng.random() < 0.5]
            self._out.append(len(chosen))
            for each in chosen:
                outer, spots = self._out, self._spots
                self._out, self._spots = bytearray(), []
                self._value(each, cls.__name__, True, api, tag=True)
                inner = self._out
                prefix = encode_uvarint(each.tag or 0) + encode_uvarint(len(inner))
                self._out, self._spots = outer, spots
                self._out += prefix
                self._out += inner
            self._spots.append(_Spot("tags", start, len(self._out), f"{cls.__name__} tags", True, None))

    def _value(self, each: Field, owner: str, flexible: bool, api: str, *, tag: bool = False) -> None:
        rng, kind, start = self._rng, each.wire, len(self._out)
        null = each.nullable(self._version) and rng.random() < 0.15
        name = f"{owner}.{each.name}"
        if isinstance(kind, Fixed):
            self._out += self._fixed(kind, each.name, api)
            self._spots.append(_Spot("fixed", start, len(self._out), name, flexible, kind))
        elif isinstance(kind, Text):
            self._sized(None if null else self._text(each.name, owner).encode(), flexible, "h")
            self._spots.append(_Spot("text", start, len(self._out), name, flexible, kind))
        elif isinstance(kind, (Blob, RecordsView)):
            self._sized(None if null else self._blob(each.name), flexible, "i")
            self._spots.append(_Spot("blob", start, len(self._out), name, flexible, kind))
        elif isinstance(kind, Array):
            count = -1 if null else rng.choice((0, 1, 1, 1, 2))
            self._out += encode_uvarint(count + 1) if flexible else struct.pack(">i", count)
            element = Field(
                kind.element,
                since=0,
                until=None,
                nullable_since=None,
                default=None,
                tag=None,
                tag_since=None,
                compact=True,
            )
            element.name = each.name
            elements = []
            for _ in range(count):
                at = len(self._out)
                if isinstance(kind.element, type):
                    self._struct(kind.element, flexible, api)
                else:
                    self._value(element, owner, flexible, api)
                elements.append((at, len(self._out)))
            self._spots.append(_Spot("array", start, len(self._out), name, flexible, kind, tuple(elements)))
        elif each.nullable(self._version):
            self._out += (b"\0" if tag else b"\xff") if null else b"\x01"
            self._spots.append(_Spot("struct", start, len(self._out), name, flexible, kind))
            if not null:
                self._struct(kind, flexible, api)
        else:
            self._struct(kind, flexible, api)

    def _sized(self, value: bytes | None, flexible: bool, code: str) -> None:
        size = -1 if value is None else len(value)
        self._out += encode_uvarint(size + 1) if flexible else struct.pack(">" + code, size)
        self._out += value or b""

    def _fixed(self, kind: Fixed[Any], name: str, api: str) -> bytes:
        rng, world = self._rng, self.world
        if kind.size == 16:
            return rng.choice((*world.topic_ids, *world.topic_ids, bytes(16)))
        if kind is Bool:
            return bytes([rng.random() < 0.5])
        value: Any = NUMBERS.get((api, name)) or NUMBERS.get(("", name))
        producer, (_, epoch) = world.producers[self._producer], world.members[self._member]
        if name.endswith("producer_id"):
            value = (producer[0], producer[0], producer[0], -1)
        elif name.endswith("producer_epoch"):
            value = (producer[1], producer[1], producer[1], -1)
        elif name in ("generation_id", "generation_id_or_member_epoch"):
            value = (epoch, epoch, -1)
        elif name == "member_epoch":
            value = (epoch, epoch, 0, -1, -2)
        elif value is None:
            value = (0, 0, 1)
        return struct.pack(">" + kind.code, rng.choice(value))

    def _text(self, name: str, owner: str) -> str:
        rng = self._rng
        if name == "name" and owner.endswith("Config"):
            return rng.choice(CONFIGS)
        if name == "name" and owner == "JoinGroupRequestProtocol":
            return "range"
        if name == "member_id":
            return rng.choice((self.world.members[self._member][0],) * 3 + ("",))
        if name == "resource_name":
            return rng.choice((*TOPICS, "1", "", self.world.groups[1]))
        if name in ("group_id", "group_ids", "groups", "groups_names"):
            return self.world.groups[self._member]
        if name.endswith("transactional_id"):
            return TRANSACTIONS[self._producer]
        if name in ("key", "coordinator_keys"):
            return rng.choice((*self.world.groups, *TRANSACTIONS))
        return rng.choice(TEXTS.get(name, TOPICS))

    def _blob(self, name: str) -> bytes:
        if name == "records":
            return self._rng.choice(self.batches)
        if name == "metadata":
            return self._subscription
        return self._rng.choice((b"", self._subscription))

    # -- one hostile field

    def _hostile(self, spot: _Spot, body: bytearray) -> tuple[bytes, str]:
        rng = self._rng
        old = bytes(body[spot.start : spot.end])
        if spot.kind == "fixed":
            return self._hostile_fixed(spot, old)
        if spot.kind == "tags":
            new = rng.choice(hostile_tags(rng, old))
            return new, new[:40].hex()
        if spot.kind == "struct":
            new = rng.choice((b"\xff", b"\x00", b"\x01", b"\x02", b"\x80", b"\x7f"))
            return new, new.hex()
        if spot.kind == "array":
            return self._hostile_array(spot, old, body)
        classic = "h" if spot.kind == "text" else "i"
        draw = rng.random()
        if draw < 0.35:  # the length alone
            skip = uvarint_size(old) if spot.flexible else struct.calcsize(classic)
            if spot.flexible:
                length = rng.choice(HOSTILE_UVARINTS)
            else:
                length = struct.pack(">" + classic, rng.choice([n for n in HOSTILE_COUNTS if fits(n, classic)]))
            return length + old[skip:], f"length {length.hex()}"
        if spot.kind == "text":
            value = rng.choice(HOSTILE_TEXTS)
        elif isinstance(spot.wire, RecordsView):
            value = self._hostile_batch()
        else:
            value = rng.choice((b"", b"\0", rng.randbytes(rng.randrange(1, 60)), bytes(5_000), b"\xff" * 40))
        prefix = encode_uvarint(len(value) + 1) if spot.flexible else struct.pack(">" + classic, len(value))
        return prefix + value, repr(value[:40])

    def _hostile_fixed(self, spot: _Spot, old: bytes) -> tuple[bytes, str]:
        rng, kind = self._rng, spot.wire
        if kind.size == 16:
            new = rng.choice((bytes(16), bytes(15) + b"\x01", b"\xff" * 16, rng.randbytes(16)))
        elif kind is Bool:
            new = rng.choice((b"\x02", b"\xff", b"\x80", b"\x00", b"\x01"))
        elif kind.code in INT_BITS:
            bits = INT_BITS[kind.code]
            choices = [0, 1, -1, -2, -3, 2, 5, 100, 2**bits - 1, 2**bits - 2, -(2**bits), rng.randrange(2**bits)]
            if spot.name.rpartition(".")[2] in _COUNTS_OF_PARTITIONS:
                choices = [each for each in choices if not _PARTITIONS_MAX < each < 2**30]
            if spot.name == "UnregisterBrokerRequest.broker_id":
                choices.remove(1)
            new = struct.pack(">" + kind.code, rng.choice(choices))
        else:
            new = rng.randbytes(kind.size)
        return new, f"{old.hex()} became {new.hex()}"

    def _hostile_array(self, spot: _Spot, old: bytes, body: bytearray) -> tuple[bytes, str]:
        rng = self._rng
        skip = uvarint_size(old) if spot.flexible else 4
        if spot.elements and rng.random() < 0.5:
            at, end = rng.choice(spot.elements)
            element = bytes(body[at:end])
            times = rng.choice((2, 2, 3, 100))
            if len(element) * times > 100_000:
                times = 2
            count = len(spot.elements) + times - 1
            prefix = encode_uvarint(count + 1) if spot.flexible else struct.pack(">i", count)
            return prefix + old[skip:] + element * (times - 1), f"an element {times} times"
        count_bytes = rng.choice(HOSTILE_UVARINTS) if spot.flexible else struct.pack(">i", rng.choice(HOSTILE_COUNTS))
        return count_bytes + old[skip:], f"count {count_bytes.hex()}"

    def _hostile_batch(self) -> bytes:
        """A batch with one header field or some bytes changed, mostly under a checksum that fits."""
        rng = self._rng
        batch = bytearray(rng.choice(self.batches))
        draw = rng.random()
        if draw < 0.1:
            return bytes(batch[: rng.randrange(len(batch))])
        if draw < 0.2:
            return bytes(batch) + bytes(rng.choice(self.batches))
        if draw < 0.4:
            batch[rng.randrange(len(batch))] ^= 1 << rng.randrange(8)
        else:
            at, code = rng.choice(BATCH_FIELDS)
            bits: int = INT_BITS[code]
            struct.pack_into(
                ">" + code, batch, at, rng.choice((0, 1, -1, 5, 2**bits - 1, -(2**bits), rng.randrange(2**bits)))
            )
        if rng.random() < 0.9:
            struct.pack_into(">I", batch, 17, crc32c.crc32c(bytes(batch[21:])))
        return bytes(batch)


def _judge(api: registry.Api, version: int, body: bytearray) -> tuple[bool, bool]:
    """Whether the broker must close the connection for these bytes, and whether it may answer late."""
    try:
        request = decode(api.request, bytes(body), version, 0)
    except RemoteProtocolError:
        return True, False
    if isinstance(request, ProduceRequest):
        return False, request.acks == 0
    if isinstance(request, FetchRequest):
        return False, request.max_wait_ms > 200
    return False, api.name in ("JoinGroup", "SyncGroup")
