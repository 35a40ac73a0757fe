"""What mypy --strict says about programs of users: the types of keys and values follow from serializers and deserializers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="mypy is not installed")

# Lines that end in "# error" must be refused, and no others. `reveal_type(x)  # T` must be exactly T.
PROGRAM = """
import json
from typing import Any
from barnabas.client import (
    Admin, Consumer, ErrorCode, KafkaError, NewMessage, Producer, Record, SendFailed, TopicPartition, exactly_once
)


async def reading() -> None:
    async with Consumer("orders") as plain:
        async for record in plain:
            reveal_type(record.key)  # bytes | None
            record.value.decode()  # error: a tombstone has no value
            if record.value is not None:
                reveal_type(record.value.decode())  # str
    async with Consumer("orders", key_deserializer=bytes.decode, value_deserializer=int) as typed:
        one = await typed.getone()
        reveal_type(one.key)  # str | None
        for records in (await typed.getmany(timeout_ms=5)).values():
            reveal_type(records[0].value)  # int | None
    parsed = Consumer("orders", value_deserializer=lambda data: json.loads(data))
    reveal_type((await parsed.getone()).value)  # Any | None


def handle(record: Record[str | None, int | None]) -> None: ...


def bare(record: Record) -> None:
    reveal_type(record.value)  # bytes | None


async def passing(typed: Consumer[str, int], plain: Consumer) -> None:
    handle(await typed.getone())
    bare(await plain.getone())
    handle(await plain.getone())  # error: other types


async def writing() -> None:
    producer = Producer()
    await producer.send("orders", b"tea", bytearray(b"42"))
    await producer.send("orders", None, key=b"42")
    await producer.send("orders", "tea")  # error: bytes or a serializer
    strings = Producer(key_serializer=str.encode, value_serializer=str.encode)
    await strings.send("orders", "tea", key="42")
    await strings.send("orders", "tea")
    await strings.send("orders", b"tea")  # error: str
    orders = Producer[str, dict[str, Any]](value_serializer=lambda order: json.dumps(order).encode())
    await orders.send("orders", {"drink": "tea"})
    await orders.send("orders", ["tea"])  # error: dict
    await producer.send("orders", b"tea", headers={"trace": "7", "raw": b"7", "none": None})
    await producer.send("orders", b"tea", headers=[("trace", b"7"), ("trace", "8")])
    await producer.send("orders", b"tea", headers={"trace": 7})  # error: int
    try:
        await producer.flush()
    except SendFailed as failed:
        reveal_type(failed.errors[0].code)  # ErrorCode | None


async def copying(typed: Consumer[str, int], producer: Producer, strings: Producer[str, str]) -> None:
    await exactly_once(Consumer(), producer, lambda r: [NewMessage("b", r.value and r.value.upper(), r.key)])
    await exactly_once(typed, strings, lambda r: [NewMessage("b", str(r.value), r.key)])
    await exactly_once(typed, producer, lambda r: [NewMessage("b", str(r.value), r.key)])  # error: str


async def choosing() -> None:
    Consumer(auto_offset_reset="first")  # error: earliest, latest, none
    Consumer(isolation_level="committed")  # error
    Consumer(group_protocol="new")  # error
    Consumer(partition_assignment_strategy=["fair"])  # error
    Producer(acks=2)  # error
    Producer(compression_type="brotli")  # error


async def administering(admin: Admin) -> None:
    cluster = await admin.describe_cluster()
    reveal_type(cluster.cluster_id)  # str | None
    cluster_id, controller_id, brokers = cluster
    reveal_type(brokers[0].port)  # int
"""


def test_programs_of_users_have_the_right_types(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    strict = ["--strict", "--config-file=", f"--cache-dir={tmp_path}", "--no-error-summary", str(program)]
    done = subprocess.run([sys.executable, "-m", "mypy", *strict], capture_output=True, text=True)
    refused: set[int] = set()
    revealed: dict[int, str] = {}
    for number, kind, text in re.findall(r"program\.py:(\d+): (error|note): (.*)", done.stdout):
        if kind == "error":
            refused.add(int(number))
        elif (found := re.fullmatch(r'Revealed type is "(.*)"', text)) is not None:
            revealed[int(number)] = re.sub(r"\b(?:builtins|barnabas\.errors)\.", "", found.group(1))
    lines = dict(enumerate(PROGRAM.splitlines(), 1))
    assert refused == {number for number, line in lines.items() if "# error" in line}, done.stdout
    assert revealed == {n: line.partition("# ")[2] for n, line in lines.items() if "reveal_type" in line}
