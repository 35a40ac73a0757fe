"""`barnabas produce`: what becomes a record, failures with their line, transactions, signals, pipes and terminals."""

from __future__ import annotations

import array
import fcntl
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import IO

import pytest

from barnabas.testing import Broker
from tests.support.processes.cli import as_in_a_terminal, called, shown_until
from tests.support.processes.records import read_topic, topic_name

pytestmark = pytest.mark.process

PRODUCE = [sys.executable, "-m", "barnabas.cli.main", "produce"]


def produced(broker: Broker, *arguments: str, stdin: bytes = b"") -> tuple[int, str]:
    """Exit code and stderr."""
    done = called("produce", *arguments, "-b", broker.bootstrap_servers, stdin=stdin)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_lines_become_values(shared_broker: Broker, tmp_path: Path) -> None:
    """A carriage return and an empty line are kept; the last line may lack its end."""
    topic = topic_name(shared_broker)
    assert produced(shared_broker, topic, stdin=b"a\n\nb\r\n\xff\x00\nlast") == (0, f"wrote 5 records to {topic}\n")
    assert [r.value for r in read_topic(shared_broker, topic)] == [b"a", b"", b"b\r", b"\xff\x00", b"last"]

    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"1\r\n2\r\n")
    second.write_bytes(b"3")
    files = ("--file", str(first), "--file", str(second))
    other = topic_name(shared_broker)
    assert produced(shared_broker, other, "--crlf", *files) == (0, f"wrote 3 records to {other}\n")
    assert produced(shared_broker, other, "--whole", *files, "--file=-", stdin=b"x\ny\n")[0] == 0
    assert [r.value for r in read_topic(shared_broker, other)] == [b"1", b"2", b"3", b"1\r\n2\r\n", b"3", b"x\ny\n"]
    assert produced(shared_broker, other) == (0, f"wrote 0 records to {other}\n")


def test_keys_nulls_headers_timestamps_and_partitions(shared_broker: Broker) -> None:
    topic = topic_name(shared_broker, partitions=3)
    options = ("-K", r"\x1f", "-Z", "--null-marker", "NULL", "-H", "from=cli", "-H", "empty=", "-H", "none", "-p", "2")
    code, told = produced(
        shared_broker,
        topic,
        *options,
        "--timestamp",
        "2026-01-01T00:00:00Z",
        stdin=b"k\x1fv\nk\x1f\nno key\nNULL\x1fNULL\n",
    )
    assert (code, told) == (0, f"wrote 4 records to {topic}\n")
    records = read_topic(shared_broker, topic)
    assert [(r.key, r.value) for r in records] == [(b"k", b"v"), (b"k", None), (None, b"no key"), (None, None)]
    assert {(r.partition, r.timestamp) for r in records} == {(2, 1_767_225_600_000)}
    assert list(records[0].headers) == [("from", b"cli"), ("empty", b""), ("none", None)]

    keyed = topic_name(shared_broker, partitions=3)
    assert produced(shared_broker, keyed, "-K", r"\t", stdin=b"".join(b"k%d\tv\n" % n for n in range(50)))[0] == 0
    assert produced(shared_broker, keyed, "--key", "k7", stdin=b"same partition\n")[0] == 0
    found = read_topic(shared_broker, keyed)
    assert {r.partition for r in found} == {0, 1, 2}
    assert len({r.partition for r in found if r.key == b"k7"}) == 1


def test_a_line_above_the_limit_is_named_and_nothing_else_is_lost(shared_broker: Broker, tmp_path: Path) -> None:
    topic = topic_name(shared_broker, max_message_bytes=2_000)
    lines = [b"%d" % n for n in range(1_000)]
    lines[500] = b"x" * 3_000
    lines[700] = b"y" * 3_000_000  # above max.request.size, too
    path = tmp_path / "lines"
    path.write_bytes(b"\n".join(lines))
    code, told = produced(shared_broker, topic, "-f", str(path), "-p", "0")
    assert code == 1
    assert told.startswith(f"barnabas produce: {path} line 501: MESSAGE_TOO_LARGE: ")
    assert told.endswith(f"; wrote 998 records to {topic}; 2 not written\n")
    assert told.count("\n") == 1
    assert [r.value for r in read_topic(shared_broker, topic)] == [line for line in lines if len(line) < 2_000]

    keyed = b"a:1\nb:" + b"x" * 3_000 + b"\nc:3\n"
    code, told = produced(shared_broker, topic, "-K", ":", stdin=keyed)
    assert (code, "line 2: MESSAGE_TOO_LARGE" in told, "wrote 2 records" in told) == (1, True, True), told


def test_a_line_that_is_no_record_ends_the_input(shared_broker: Broker) -> None:
    """The lines before it are written, and the message says how many: the rest can be sent later."""
    topic = topic_name(shared_broker)
    code, told = produced(shared_broker, topic, "--json", stdin=b'{"value":1}\n{"valeu":2}\n{"value":3}\n')
    assert code == 1
    assert told.startswith("barnabas produce: line 2: unknown field 'valeu'; did you mean 'value'?; wrote 1 record ")
    code, told = produced(shared_broker, topic, "--json", stdin=b'{"value":4,"partition":9}\n')
    assert (code, "line 1: UNKNOWN_TOPIC_OR_PARTITION: the topic has partition" in told) == (1, True), told
    assert [r.value for r in read_topic(shared_broker, topic)] == [b"1"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("-X", "foo"), "-X 'foo' is not key=value"),
        (("-X", "batchsize=1"), "did you mean 'batch.size'?"),
        (("-X", "fetch.min.bytes=1"), "-X fetch.min.bytes: no property of a producer here"),
        (("-X", "linger.ms=x"), "linger.ms='x' is not a whole number"),
        (("-X", "acks=7"), "acks='7'"),
        (("--acks", "0", "--transactional-id", "t"), "acks='all'"),
        (("--transaction-size", "5"), "--transaction-size needs --transactional-id"),
        (("--transaction-size", "0", "--transactional-id", "t"), "at least 1"),
        (("--key", "a", "-K", ":"), "exclude each other"),
        (("-K", r"\q"), r"unknown escape \q"),
        (("-K", ""), "is empty"),
        (("--json", "-Z"), "--json has keys and nulls in its lines"),
        (("--whole", "--crlf"), "--whole reads no lines"),
        (("-p", "-1"), "partitions are numbered from 0"),
        (("-H", "=x"), "NAME=VALUE is expected"),
        (("-f", "/nowhere"), "there is no file /nowhere"),
        (("--timestamp", "soon"), "'soon' is not a time"),
        (("--compression", "zip"), "zip"),
    ],
)
def test_wrong_calls_are_refused_in_one_line(options: tuple[str, ...], reason: str) -> None:
    refused = called("produce", "t", *options, "-b", "127.0.0.1:1")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
    assert reason in refused.stderr


def test_transactions_for_all_lines_or_for_every_few(shared_broker: Broker) -> None:
    topic = topic_name(shared_broker)
    mine = (topic, "--transactional-id", topic)
    lines = b"".join(b"%d\n" % n for n in range(10))
    assert produced(shared_broker, *mine, stdin=lines) == (0, f"wrote 10 records to {topic}\n")
    some = produced(shared_broker, *mine, "--transaction-size", "4", stdin=lines)
    assert some == (0, f"wrote 10 records to {topic} in 3 committed transactions\n")
    values = [b"%d" % n for n in range(10)]
    assert [r.value for r in read_topic(shared_broker, topic)] == values * 2
    # Offsets without records are the commit markers: one after 10, then after 4, 4 and 2 records.
    assert [r.offset for r in read_topic(shared_broker, topic)][10:] == [11, 12, 13, 14, 16, 17, 18, 19, 21, 22]

    wrong = lines[:6] + b"x" * 2_000_000 + b"\n" + lines
    code, told = produced(shared_broker, *mine, "--transaction-size", "2", stdin=wrong)
    assert (code, "line 4: it is longer than max.request.size" in told) == (1, True), told
    assert told.endswith(f"wrote 2 records to {topic} in 1 committed transaction; 1 not written; 1 not committed\n")
    assert [r.value for r in read_topic(shared_broker, topic)][20:] == [b"0", b"1"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"])
def test_a_signal_sends_what_was_read_and_aborts_a_transaction(
    shared_broker: Broker, number: signal.Signals, code: int
) -> None:
    topic = topic_name(shared_broker)
    for transactional in (False, True):
        command = [*PRODUCE, topic, "-b", shared_broker.bootstrap_servers]
        command += ["--transactional-id", topic, "--transaction-size", "2"] if transactional else []
        running = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=as_in_a_terminal
        )
        assert running.stdin is not None
        running.stdin.write("1\n2\n3\n")
        running.stdin.flush()
        wait_until_written(shared_broker, topic, 5 if transactional else 3)
        running.send_signal(number)
        assert running.wait(60) == code
        told = rest_of(running)
        if transactional:
            expected = f"wrote 2 records to {topic} in 1 committed transaction; 1 not committed\n"
        else:
            expected = f"wrote 3 records to {topic}\n"
        assert told == f"barnabas produce: interrupted; {expected}"
    assert [r.value for r in read_topic(shared_broker, topic)] == [b"1", b"2", b"3", b"1", b"2"]


def rest_of(ended: subprocess.Popen[str]) -> str:
    """What a process has written to stderr. Its input was open until it ended."""
    assert ended.stderr is not None
    assert ended.stdin is not None
    with ended.stdin, ended.stderr:
        return ended.stderr.read()


def wait_until_written(broker: Broker, topic: str, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(read_topic(broker, topic)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_until_read(pipe: IO[str]) -> None:
    """Waits until the process at the other end has read everything."""
    deadline, unread = time.monotonic() + 60, array.array("i", [1])
    while unread[0]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
        fcntl.ioctl(pipe, termios.FIONREAD, unread)


def test_a_signal_without_brokers_names_what_is_unknown(serve: object) -> None:
    broker: Broker = serve("num.partitions=1")  # type: ignore[operator]  # the fixture's type is a callable
    topic = topic_name(broker)
    command = [*PRODUCE, topic, "-b", broker.bootstrap_servers]
    running = subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=as_in_a_terminal
    )
    assert running.stdin is not None
    running.stdin.write("1\n")
    running.stdin.flush()
    wait_until_written(broker, topic, 1)
    broker.pause()
    running.stdin.write("2\n3\n")
    running.stdin.flush()
    wait_until_read(running.stdin)
    time.sleep(0.3)  # until the client has the lines; no answer says when
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    broker.resume()
    assert rest_of(running) == (
        f"barnabas produce: interrupted; wrote 1 record to {topic}; "
        "2 without an acknowledgement: the brokers may have them or not\n"
    )


def test_memory_is_constant_and_a_terminal_shows_progress(shared_broker: Broker, tmp_path: Path) -> None:
    """48 MB from a pipe, with acks=0 so that the broker does not limit the pace; the bar is on the terminal only."""
    topic = topic_name(shared_broker)
    ours, theirs = os.openpty()
    command = [*PRODUCE, topic, "-b", shared_broker.bootstrap_servers, "-z", "zstd"]
    running = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    block = (b"x" * 99 + b"\n") * 10_000
    peaks: list[int] = []

    def feed() -> None:
        assert running.stdin is not None
        for _ in range(48):
            running.stdin.write(block)
            peaks.append(resident_kb(running.pid))
        time.sleep(0.7)  # a pause, after which the bar is drawn at the latest
        running.stdin.write(block)
        running.stdin.close()

    feeder = threading.Thread(target=feed)
    feeder.start()
    shown = shown_until(ours, r"wrote \d+ records")
    feeder.join()
    running.wait(60)
    os.close(ours)
    assert "MB" in shown
    assert f"wrote 490000 records to {topic}" in shown
    assert max(peaks) < 160_000, "resident kB; the input has 48,000"
    assert max(peaks[24:]) - max(peaks[8:24]) < 24_000


def test_a_line_of_any_length_is_refused_in_constant_memory(shared_broker: Broker) -> None:
    """256 MB without a line feed, then a line: its length cannot be held, and the next line is written."""
    topic = topic_name(shared_broker)
    command = [*PRODUCE, topic, "-b", shared_broker.bootstrap_servers]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdin is not None
        block, peak = bytes(1_000_000), 0
        for _ in range(256):
            running.stdin.write(block)
            peak = max(peak, resident_kb(running.pid))
        _, said = running.communicate(b"\nnext\n", timeout=60)
    assert running.returncode == 1
    assert b"line 1: " in said
    assert b"it is longer than max.request.size=" in said
    assert b"wrote 1 record to " in said
    assert peak < 110_000, "resident kB; the line has 256,000"
    assert [each.value for each in read_topic(shared_broker, topic)] == [b"next"]


def resident_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    return 0
