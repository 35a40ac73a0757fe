"""Every public call of the client refuses arguments of wrong types at once, before it is started, with a text that names the argument."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal
from unittest.mock import create_autospec

import pytest

from barnabas.client import (
    Admin,
    Consumer,
    IllegalState,
    InvalidTopic,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
    exactly_once,
)
from barnabas.client.admin import AclBinding, AclOperation, AclResourceType
from barnabas.client.arguments import checked
from barnabas.client.consumer.ranges import RangeReader


class Wrong:
    """A value that no call accepts."""


def calls() -> Iterable[tuple[str, Callable[..., Any], str]]:
    """Every public method, with each of its arguments."""
    for kind in (Admin, Consumer, Producer):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if name.startswith("_") or name in ("send", "send_and_wait"):
                continue
            for argument in list(inspect.signature(method).parameters)[1:]:
                yield f"{kind.__name__}.{name}", method, argument


CALLS = list(calls())


@pytest.mark.parametrize(("name", "method", "argument"), CALLS, ids=[f"{name}-{arg}" for name, _, arg in CALLS])
def test_a_wrong_argument_is_refused_before_anything_else(name: str, method: Callable[..., Any], argument: str) -> None:
    kind = inspect.signature(method).parameters[argument].kind
    client = {"Admin": Admin, "Consumer": Consumer, "Producer": Producer}[name.split(".")[0]]()

    async def call() -> None:
        if kind is inspect.Parameter.VAR_POSITIONAL:
            outcome = method(client, Wrong()) if name != "Consumer.seek_to_time" else method(client, 0, Wrong())
        else:
            outcome = method(client, **{argument: Wrong()})
        await outcome

    with pytest.raises(IllegalState, match=rf"{name}: (each of )?{argument} must be .*, not Wrong"):
        asyncio.run(call())


def test_all_calls_are_tried() -> None:
    assert len(CALLS) > 130


PARTITION = "must be a TopicPartition, such as TopicPartition\\('orders', 0\\)"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: Admin().create_topics(["x"]), "Admin.create_topics: each of topics must be a NewTopic, not str"),  # type: ignore[list-item]  # the wrong type is tested
        (lambda: Admin().delete_topics("orders"), "Admin.delete_topics: topics must be a list of str, not str"),
        (lambda: Admin().list_offsets("x"), "Admin.list_offsets: partitions must be a dict from a TopicPartition to an int or a str, not str"),  # type: ignore[arg-type]  # as above
        (lambda: Admin().list_offsets({TopicPartition("x", 0): "newest"}), "Admin.list_offsets: 'newest' is neither a timestamp nor one of earliest"),
        (lambda: Consumer().seek("m", 5), f"Consumer.seek: partition {PARTITION}, not str"),  # type: ignore[arg-type]  # as above
        (lambda: Consumer().seek(TopicPartition("m", 0), "5"), "Consumer.seek: offset must be an int or an OffsetAndMetadata, not str"),  # type: ignore[arg-type]  # as above
        (lambda: Consumer().seek(TopicPartition("m", 0), OffsetAndMetadata("5")), "Consumer.seek: offset of offset must be an int, not str"),  # type: ignore[arg-type]  # as above
        (lambda: Consumer().pause([TopicPartition("m", 0)]), f"each of partitions {PARTITION}, not list"),  # type: ignore[arg-type]  # as above
        (lambda: Consumer().getmany(timeout_ms=-1), "Consumer.getmany: timeout_ms must be from 0 to 2147483647, not -1"),
        (lambda: Consumer().getmany(max_records=0), "max_records must be from 1 to"),
        (lambda: Admin().describe_group(7), "group_id must be a str, not 7"),  # type: ignore[arg-type]  # as above
        (lambda: Admin().create_topics([NewTopic("x", configs={"retention.ms": 5})]), "each value of configs of each of topics must be a str, not 5"),  # type: ignore[dict-item]  # as above
        (lambda: Admin().create_acls([AclBinding(AclResourceType.TOPIC, "x", 7, AclOperation.READ)]), "principal of each of acls must be a str, not 7"),  # type: ignore[arg-type]  # as above
        (lambda: Admin().describe_topics([TopicPartition("x", 0)]), "each of topics must be a str, not TopicPartition"),  # type: ignore[list-item]  # as above
        (lambda: exactly_once(Producer(), Consumer(), lambda _: []), "exactly_once: consumer must be a Consumer, not Producer"),  # type: ignore[arg-type]  # as above
        (lambda: RangeReader(None, "x", 0, 1), "RangeReader: cluster must be a NetworkClient, not None"),  # type: ignore[arg-type]  # as above
        (lambda: Consumer(value_deserializer=5), "value_deserializer must be a callable, not int"),  # type: ignore[arg-type]  # as above
        (lambda: Producer(key_serializer="utf-8"), "key_serializer must be a callable, not str"),  # type: ignore[arg-type]  # as above
        (lambda: Consumer(listener=5), "listener must be a RebalanceListener, not int"),  # type: ignore[arg-type]  # as above
    ],
)  # fmt: skip
def test_the_text_says_what_is_expected(call: Callable[[], Any], text: str) -> None:
    async def made() -> None:
        outcome = call()
        if inspect.isawaitable(outcome):
            await outcome

    with pytest.raises(IllegalState, match=text):
        asyncio.run(made())


class Integer:
    """An integer as NumPy's: no int, but usable as one."""

    def __index__(self) -> int:
        return 3


class Word(str):
    """A str of another class."""

    __slots__ = ()


@checked
def example(
    items: Sequence[str] | None = None,
    pairs: Mapping[TopicPartition, Sequence[int] | None] | None = None,
    level: Literal["low", "high"] | int = "low",
    ratio: float = 0.5,
    data: bytes = b"",
    timeout_ms: int | None = None,
) -> tuple[object, ...]:
    return items, pairs, level, ratio, data, timeout_ms


def test_values_come_as_the_annotated_types() -> None:
    found = example((name for name in "ab"), {("orders", 1): (2, 3)}, 7, 1)  # type: ignore[arg-type,dict-item]  # a generator, and a pair for a TopicPartition
    assert found == (["a", "b"], {TopicPartition("orders", 1): [2, 3]}, 7, 1, b"", None)
    assert isinstance(next(iter(found[1])), TopicPartition)


def test_values_of_like_types_are_converted() -> None:
    pairs: Any = {("orders", Integer()): (Integer(),)}
    found = example({"a": 1}.keys(), pairs, Word("high"), Fraction(1, 2), bytearray(b"x"), 0.25 * 1000 + 0.5)  # type: ignore[arg-type]  # other types are tested
    assert found == (["a"], {TopicPartition("orders", 3): [3]}, "high", Fraction(1, 2), b"x", 251)
    assert type(found[2]) is str
    assert [type(each) for each in (next(iter(found[1])).partition, found[4], found[5])] == [int, bytes, int]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"timeout_ms": float("inf")}, "timeout_ms must be an int or None, not inf"),
        ({"timeout_ms": 1e12}, "timeout_ms must be from 0 to 2147483647, not 1000000000000"),
        ({"items": [1]}, "each of items must be a str, not 1"),
        ({"items": b"ab"}, "items must be None or a list of str, not bytes"),
        ({"pairs": {("orders", True): None}}, "each key of pairs must be a TopicPartition, .*not tuple"),
        ({"pairs": {("orders", 1): ["2"]}}, "each of each value of pairs must be an int, not str"),
        ({"level": "middle"}, "level must be one of 'low', 'high' or an int, not 'middle'"),
        ({"level": True}, "level must be one of 'low', 'high' or an int, not True"),
        ({"ratio": "1"}, "ratio must be a number, not str"),
    ],
)
def test_a_refusal_names_the_part_that_is_wrong(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(IllegalState, match=f"example: {text}"):
        example(**arguments)


def test_a_text_that_may_be_secret_is_not_shown() -> None:
    with pytest.raises(IllegalState) as refused:
        asyncio.run(Admin().set_scram_password("ann", "sesame", iterations="sesame"))  # type: ignore[arg-type]  # the wrong type is tested
    assert "sesame" not in str(refused.value)


def test_send_refuses_a_topic_of_a_wrong_type() -> None:
    async def send(**wrong: Any) -> None:
        producer = Producer()
        producer._started, producer._delivery.loop = (
            True,
            asyncio.get_running_loop(),
        )  # the check comes before the first use of the network
        await producer.send(**{"topic": "orders", **wrong})

    with pytest.raises(InvalidTopic, match=r"a topic name must be a str, not \['orders'\]"):
        asyncio.run(send(topic=["orders"]))


def test_a_mock_of_a_client_has_coroutines() -> None:
    assert inspect.iscoroutinefunction(create_autospec(Consumer).commit)
    assert not inspect.iscoroutinefunction(Consumer.seek)
