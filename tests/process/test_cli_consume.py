"""`barnabas consume`: which records, how they are printed, groups that commit what was printed, pipes, signals, terminals."""

from __future__ import annotations

import array
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from typing import Any

import pytest

from barnabas.testing import Broker
from tests.support.processes.cli import as_in_a_terminal, called, line_of
from tests.support.processes.fixtures import end, process_broker
from tests.support.processes.records import committed_offsets, read_topic, topic_name

pytestmark = pytest.mark.process

COMMAND = [sys.executable, "-m", "barnabas.cli.main"]


def run(broker: Broker, *arguments: str, stdin: bytes = b"") -> bytes:
    """Stdout of a command that works."""
    done = called(*arguments, "-b", broker.bootstrap_servers, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout.encode(errors="surrogateescape")


def lines(*values: object) -> bytes:
    return b"".join(b"%b\n" % str(value).encode() for value in values)


def test_where_reading_begins_and_ends(shared_broker: Broker) -> None:
    topic, other = topic_name(shared_broker, partitions=2), topic_name(shared_broker)
    for partition in (0, 1):
        for day in range(1, 6):
            at = ("-p", str(partition), "--timestamp", f"2026-01-0{day}T00:00:00Z")
            run(shared_broker, "produce", topic, *at, stdin=lines(f"{partition}{day}"))
    run(shared_broker, "produce", other, stdin=lines("x"))

    def values(*options: str) -> list[str]:
        return sorted(run(shared_broker, "consume", topic, "-e", *options).decode().split())

    assert values() == []
    assert values("--from-beginning", "-p", "1") == ["11", "12", "13", "14", "15"]
    assert values("--offset", "3") == ["04", "05", "14", "15"]
    assert values("--offset=-1") == ["05", "15"]
    assert values("-o", "-2", "-p", "0", "-p", "1") == ["04", "05", "14", "15"]
    assert values("-o", "earliest", "-p", "0") == ["01", "02", "03", "04", "05"]
    assert values("--since", "2026-01-04T00:00:00Z") == ["04", "05", "14", "15"]
    assert values("--since", "2026-01-02T00:00:00Z", "--until", "2026-01-03T00:00:00Z") == ["02", "12"]
    assert values("--until", "2026-01-02T00:00:00Z") == ["01", "11"]
    assert values("--since", "1m") == []
    assert len(values("--from-beginning", "-n", "3")) == 3
    assert values("--from-beginning", "-n", "0") == []
    tail = run(shared_broker, "consume", topic, other, "--tail", "3").decode().split()
    assert (sorted(tail[:2]), tail[2]) == (["05", "15"], "x")  # by their timestamps
    assert sorted(run(shared_broker, "consume", topic, other, "-e", "--from-beginning").decode().split())[-1] == "x"
    assert run(shared_broker, "consume", "--pattern", other[:-1] + "[" + other[-1] + "]", "-e", "-o", "0") == b"x\n"


def test_reading_begins_and_ends_within_a_batch_of_many_values(shared_broker: Broker) -> None:
    topic, at = topic_name(shared_broker), ("-b", shared_broker.bootstrap_servers)
    records = [{"value": str(number), "timestamp": 1_000_000 + number} for number in range(40)]
    run(shared_broker, "produce", topic, "--json", stdin=lines(*map(json.dumps, records)))
    within = ("-o", "3", "--until", "1970-01-01T00:16:40.030Z")
    for options in ((), ("--print-key",), ("-n", "1000")):  # values alone are read in another way
        shown = called("consume", topic, *within, *options, *at)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert [line.split()[-1] for line in shown.stdout.splitlines()] == [str(number) for number in range(3, 30)]


def test_a_pattern_finds_topics_that_are_created_later(shared_broker: Broker) -> None:
    name = topic_name(shared_broker)
    run(shared_broker, "produce", name, stdin=lines("old"))
    at = ("-b", shared_broker.bootstrap_servers)
    command = [*COMMAND, "consume", "--pattern", f"{name}.*", "--from-beginning", "-n", "4", *at]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
        try:
            assert line_of(reading) == b"old\n"
            shared_broker.create_topic(f"{name}-later", partitions=2)
            run(shared_broker, "produce", f"{name}-later", "--partition", "0", stdin=lines("first"))
            run(shared_broker, "produce", f"{name}-later", "--partition", "1", stdin=lines("second"))
            assert sorted(line_of(reading) for _ in range(2)) == [b"first\n", b"second\n"]
            run(shared_broker, "produce", name, stdin=lines("new"))  # the first topic is read on
            assert reading.communicate(timeout=60) == (b"new\n", b"")
            assert reading.returncode == 0
        finally:
            reading.kill()


@pytest.mark.parametrize("by", ["name", "pattern"])
def test_partitions_that_are_added_later_are_read_from_their_beginning(shared_broker: Broker, by: str) -> None:
    name = topic_name(shared_broker)
    run(shared_broker, "produce", name, stdin=lines("old"))
    topics = (name,) if by == "name" else ("--pattern", f"{name}.*")
    at = ("-b", shared_broker.bootstrap_servers)
    command = [*COMMAND, "consume", *topics, "--from-beginning", "-n", "3", *at]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
        try:
            assert line_of(reading) == b"old\n"
            run(shared_broker, "topic", "alter", name, "--partitions", "2")
            run(shared_broker, "produce", name, "--partition", "1", stdin=lines("added"))
            assert line_of(reading) == b"added\n"
            run(shared_broker, "produce", name, "--partition", "0", stdin=lines("new"))  # the first one is read on
            assert reading.communicate(timeout=60) == (b"new\n", b"")
            assert reading.returncode == 0
        finally:
            reading.kill()


def test_the_tail_looks_behind_offsets_without_records(shared_broker: Broker) -> None:
    topic = topic_name(shared_broker)
    run(shared_broker, "produce", topic, stdin=lines(*range(20)))
    transactions = ("--transactional-id", topic, "--transaction-size", "1")
    run(shared_broker, "produce", topic, *transactions, stdin=lines(*range(20, 30)))
    assert run(shared_broker, "consume", topic, "--tail", "15") == lines(*range(15, 30))
    assert run(shared_broker, "consume", topic, "--tail", "99") == lines(*range(30))
    assert run(shared_broker, "consume", topic, "--tail", "0") == b""


def test_formats_and_decoders(shared_broker: Broker) -> None:
    topic = topic_name(shared_broker)
    document = {"key": {"base64": "/wA="}, "value": {"a": [1, None]}, "headers": [["h", "v"], ["n", None]]}
    written = [document | {"timestamp": 5}, {"value": None, "timestamp": 6}]
    run(shared_broker, "produce", topic, "--json", stdin="".join(json.dumps(w) + "\n" for w in written).encode())
    reading = ("consume", topic, "--from-beginning", "-e")

    assert run(shared_broker, *reading) == b'{"a":[1,null]}\n\n'
    assert run(shared_broker, *reading, "--print-key", "--decode-key", "hex") == b'ff00\t{"a":[1,null]}\nnull\t\n'
    assert run(shared_broker, *reading, "--decode", "base64") == b"eyJhIjpbMSxudWxsXX0=\n\n"
    template = r"%t %p@%o %T [%k|%K] [%s|%S] %h 100%%\t\x41\n"
    assert run(shared_broker, *reading, "-f", template) == (
        b'%(t)b 0@0 5 [\xff\x00|2] [{"a":[1,null]}|14] h=v,n=NULL 100%%\tA\n%(t)b 0@1 6 [|-1] [|-1]  100%%\tA\n'
        % {b"t": topic.encode()}
    )
    common = {"topic": topic, "partition": 0, "timestamp_type": "CreateTime"}
    first = common | {"offset": 0, "timestamp": 5, "key": {"base64": "/wA="}, "headers": [["h", "v"], ["n", None]]}
    second = common | {"offset": 1, "timestamp": 6, "key": None, "value": None, "headers": []}
    for option in ("--json", "--format=json"):
        shown = [json.loads(line) for line in run(shared_broker, *reading, option).splitlines()]
        assert shown == [first | {"value": '{"a":[1,null]}'}, second]
    decoded = run(shared_broker, *reading, "--json", "--decode", "json", "--decode-key", "base64", "-n", "1")
    assert json.loads(decoded) == first | {"key": "/wA=", "value": {"a": [1, None]}}


def test_json_is_indented_on_a_terminal(shared_broker: Broker) -> None:
    topic = topic_name(shared_broker)
    run(shared_broker, "produce", topic, stdin=b'{"a":1}\n')
    ours, theirs = os.openpty()
    reading = [*COMMAND, "consume", topic, "--tail", "1", "--decode", "json", "-b", shared_broker.bootstrap_servers]
    assert subprocess.run(reading, stdout=theirs, timeout=60).returncode == 0
    assert os.read(ours, 100) == b'{\r\n  "a": 1\r\n}\r\n'
    os.close(ours)
    os.close(theirs)


def test_what_consume_prints_produce_writes_again(shared_broker: Broker) -> None:
    """Binary data, nulls, headers, timestamps and partitions survive: both commands have one shape of JSON."""
    source, copy = topic_name(shared_broker, partitions=3), topic_name(shared_broker, partitions=3)
    records: list[dict[str, Any]] = [
        {"partition": 0, "timestamp": 5, "key": {"base64": "/wA="}, "value": None, "headers": []},
        {"partition": 0, "timestamp": -1, "key": None, "value": "ä\u2028\n", "headers": [["h", None], ["h", "v"]]},
        {"partition": 1, "timestamp": 0, "key": "", "value": {"base64": "gA=="}, "headers": [[{"base64": "/w=="}, ""]]},
        {"partition": 2, "timestamp": 7, "key": "k", "value": '{"base64":"x"}', "headers": []},
    ]
    run(shared_broker, "produce", source, "--json", stdin=lines(*map(json.dumps, records)))
    printed = run(shared_broker, "consume", source, "--json", "--from-beginning", "-e")
    run(shared_broker, "produce", copy, "--json", stdin=printed)
    shown = map(json.loads, printed.splitlines())
    written = [{name: each[name] for name in records[0]} for each in shown]
    assert sorted(written, key=lambda each: each["partition"]) == records
    original, again = read_topic(shared_broker, source), read_topic(shared_broker, copy)
    assert [r._replace(topic="") for r in again] == [r._replace(topic="") for r in original]
    assert (original[0].key, original[0].value, original[2].headers) == (b"\xff\x00", None, (("\udcff", b""),))


def test_control_records_and_aborted_ones(shared_broker: Broker) -> None:
    topic = topic_name(shared_broker)
    mine = ("produce", topic, "--transactional-id", topic)
    run(shared_broker, *mine, stdin=lines("kept"))
    at = ("-b", shared_broker.bootstrap_servers)
    failing = called(*mine, *at, stdin=b"dropped\n" + b"x" * 2_000_000)
    assert failing.returncode == 1
    reading = ("consume", topic, "--from-beginning", "-e")
    assert run(shared_broker, *reading) == b"kept\n"
    shown = run(shared_broker, *reading, "--isolation", "raw").decode().splitlines()
    assert shown[0] == "kept"
    assert re.fullmatch(r"\[COMMIT producer id \d+, producer epoch \d+, coordinator epoch 0\]", shown[1])
    documents = [json.loads(line) for line in run(shared_broker, *reading, "--isolation", "raw", "--json").splitlines()]
    assert documents[1]["control"] == {"type": "COMMIT", "coordinator_epoch": 0}
    assert (documents[0]["control"], documents[0]["transactional"]) == (None, True)
    assert documents[0]["producer_id"] == documents[1]["producer_id"] >= 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "name topics, or --pattern"),
        (("t", "--pattern", "x"), "exclude each other"),
        (("--pattern", "["), "--pattern '['"),
        (("t", "--max-records", "-1"), "--max-records -1: it must be at least 0"),
        (("t", "--tail", "-1"), "--tail -1"),
        (("t", "--partition", "-1"), "partitions are numbered from 0"),
        (("t", "--offset", "first"), "'first' is none of a number"),
        (("t", "--offset", "9" * 5000), "is none of a number"),
        (("t", "--since", "9" * 5000), "is not a duration"),
        (("t", "--since", "soon"), "'soon' is not a duration"),
        (("t", "--until", "2999-01-01"), "has not come yet"),
        (("t", "--since", "1m", "--until", "1h"), "--until is before --since"),
        (("t", "--since", "1m", "--from-beginning"), "exclude each other"),
        (("t", "--group", "g", "--offset", "3"), "barnabas group reset-offsets"),
        (("t", "--tail", "3", "--since", "1m"), "--tail reads up to the present end"),
        (("t", "--format", "jsno"), "neither value, json nor a template"),
        (("t", "-f", "%q"), "unknown token %q"),
        (("t", "-f", r"%s\q"), r"unknown escape \q"),
        (("t", "--json", "--print-key"), "no --print-key"),
        (("t", "-X", "fetch.min.byte=1"), "did you mean 'fetch.min.bytes'?"),
        (("t", "--decode", "xml"), "xml"),
    ],
)
def test_wrong_calls_are_refused_in_one_line(options: tuple[str, ...], reason: str) -> None:
    refused = called("consume", *options, "-b", "127.0.0.1:1")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
    assert reason in refused.stderr


def test_a_missing_topic_or_partition_is_named(shared_broker: Broker) -> None:
    topic = topic_name(shared_broker)
    at = ("-b", shared_broker.bootstrap_servers)
    for options, reason in (
        (("nowhere",), "there is no such topic (topic 'nowhere')"),
        ((topic, "-p", "3"), "there is no partition 3"),
        (("--pattern", "nowhere.*"), "no topic matches 'nowhere.*'"),
    ):
        failed = called("consume", *options, *at)
        assert (failed.returncode, reason in failed.stderr, failed.stderr.count("\n")) == (1, True, 1), failed.stderr


# -- groups ------------------------------------------------------------------------------------------------------------


def member(broker: Broker, topic: str, *options: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    command = [*COMMAND, "consume", topic, "--group", topic, "--from-beginning", *options]
    command += ["-b", broker.bootstrap_servers]
    return subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, preexec_fn=as_in_a_terminal)


@pytest.fixture(scope="module")
def quick_groups() -> Iterator[Broker]:
    """A broker whose groups begin at once."""
    broker = process_broker("group.initial.rebalance.delay.ms=0").start()
    yield broker
    end(broker)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])
def test_a_signal_commits_what_was_printed_and_leaves_the_group(quick_groups: Broker, number: signal.Signals) -> None:
    broker = quick_groups
    topic = topic_name(broker)
    run(broker, "produce", topic, stdin=lines(*range(100)))
    reading = member(broker, topic)
    assert reading.stdout is not None
    shown = b""
    while shown.count(b"\n") < 100:
        shown += os.read(reading.stdout.fileno(), 65_536)
    reading.send_signal(number)
    _, told = reading.communicate(timeout=60)
    assert (reading.returncode, told) == (128 + number, b"")
    assert committed_offsets(broker, topic) == {0: 100}
    assert broker.group(topic).members() == []


def test_a_pipe_that_is_not_read_commits_only_what_it_took(quick_groups: Broker) -> None:
    """The reader of the pipe is blocked, then gone: a signal ends the command all the same, and no record is lost."""
    broker = quick_groups
    topic = topic_name(broker)
    run(broker, "produce", topic, stdin=b"".join(b"%06d %b\n" % (n, b"x" * 93) for n in range(5_000)))
    theirs, ours = os.pipe()
    size = fcntl.fcntl(ours, 1031 + 1)  # F_GETPIPE_SZ
    reading = member(broker, topic, stdout=ours)
    os.close(ours)
    first = os.read(theirs, 1_000)
    wait_until_full(theirs, size)
    reading.send_signal(signal.SIGINT)
    assert reading.wait(60) == 130
    taken = first + read_all(theirs)
    os.close(theirs)
    reading.communicate()
    whole = taken.count(b"\n")
    assert 0 < whole < 5_000
    assert committed_offsets(broker, topic) == {0: whole}
    assert broker.group(topic).members() == []
    rest = run(broker, "consume", topic, "--group", topic, "-e")
    assert rest.splitlines()[0].startswith(b"%06d " % whole)
    assert whole + rest.count(b"\n") == 5_000


def test_the_end_of_a_pipes_reader_ends_the_command(quick_groups: Broker) -> None:
    """As `| head` does, also while no record arrives. What the pipe took counts as printed; the rest is read again."""
    broker = quick_groups
    topic = topic_name(broker)
    run(broker, "produce", topic, stdin=b"".join(b"%06d %b\n" % (n, b"x" * 93) for n in range(5_000)))
    reading = member(broker, topic)
    assert reading.stdout is not None
    os.read(reading.stdout.fileno(), 1_000)
    reading.stdout.close()
    assert reading.wait(60) == 141
    assert reading.stderr is not None
    assert reading.stderr.read() == b""
    reading.stderr.close()
    offset = committed_offsets(broker, topic)[0]
    assert 0 < offset < 5_000
    rest = run(broker, "consume", topic, "--group", topic, "-e").splitlines()
    assert rest[0].startswith(b"%06d " % offset)
    assert offset + len(rest) == 5_000
    assert broker.group(topic).members() == []

    idle = member(broker, topic)
    assert idle.stdout is not None
    idle.stdout.close()
    assert idle.wait(60) == 141
    idle.communicate()


def wait_until_full(pipe: int, size: int) -> None:
    """Until nothing more fits into a pipe: less than a page is free, and it stays so."""
    held, deadline = -1, time.monotonic() + 60
    while True:
        unread = array.array("i", [0])
        fcntl.ioctl(pipe, termios.FIONREAD, unread)
        if unread[0] == held and held > size - 4_096 - 1_000:
            return
        held = unread[0]
        assert time.monotonic() < deadline, (held, size)
        time.sleep(0.1)


def read_all(pipe: int) -> bytes:
    found = b""
    while block := os.read(pipe, 65_536):
        found += block
    return found
