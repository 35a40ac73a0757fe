"""Administration on a terminal and through pipes: questions, live tables, readers that end early."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import termios
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest

from barnabas.testing import Broker
from tests.support.processes.cli import as_in_a_terminal, called, rest_of, shown_until

pytestmark = pytest.mark.process
COMMAND = (sys.executable, "-m", "barnabas.cli.main")
SECONDS_MAX = 60.0


@pytest.fixture(scope="module")
def kafka() -> Iterator[Broker]:
    with Broker() as kafka:
        kafka.create_topic("asked")
        assert called("produce", "asked", "-b", kafka.bootstrap_servers, stdin="a\nb\nc\n").returncode == 0
        yield kafka


class Terminal:
    """A command whose standard streams are a terminal."""

    def __init__(self, *arguments: str, command: Sequence[str] = COMMAND, descriptors: Collection[int] = ()) -> None:
        self.ours, theirs = os.openpty()
        self.process = subprocess.Popen(
            [*command, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=as_in_a_terminal,
            pass_fds=descriptors,
        )
        os.close(theirs)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(SECONDS_MAX)
        os.close(self.ours)


@pytest.mark.parametrize(("answer", "code", "begins_at"), [("n", 2, 0), ("", 2, 0), ("y", 0, 2)])
def test_records_are_deleted_only_after_a_yes(kafka: Broker, answer: str, code: int, begins_at: int) -> None:
    with Terminal("records", "delete", "asked:0:2", "-b", kafka.bootstrap_servers) as terminal:
        assert "asked-0" in shown_until(terminal.ours, r"delete up to 2 records for good\? \[y/N\] ")
        os.write(terminal.ours, answer.encode() + b"\n")
        shown_until(terminal.ours, r"nothing was deleted|new start")
        assert terminal.process.wait(SECONDS_MAX) == code
    (row,) = called("records", "delete", "asked:0:0", "--dry-run", "--json", "-b", kafka.bootstrap_servers).document
    assert row["log_start_offset"] == begins_at


INTERRUPTED = """if True:
    import os, signal, sys, threading
    from barnabas.cli.main import main
    def interrupt():
        os.read(told, 1)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    told = int(sys.argv[1])
    threading.Thread(target=interrupt, daemon=True).start()
    sys.argv = ["barnabas", *sys.argv[2:]]
    main()
"""


@pytest.mark.parametrize(
    ("arguments", "question"),
    [(("user", "create", "alice"), "password: "), (("user", "delete", "alice"), r"\[y/N\] ")],
    ids=["password", "confirmation"],
)
def test_ctrl_c_between_a_question_and_its_wait_is_not_lost(arguments: tuple[str, ...], question: str) -> None:
    """The system gives the signal to another thread: as there, it interrupts no call of the main thread."""
    told, tell = os.pipe()
    with Terminal("-c", INTERRUPTED, str(told), *arguments, command=(sys.executable,), descriptors=(told,)) as terminal:
        os.close(told)
        assert shown_until(terminal.ours, question)
        os.write(tell, b"!")
        assert terminal.process.wait(SECONDS_MAX) == 130
        os.close(tell)
        assert termios.tcgetattr(terminal.ours)[3] & termios.ECHO


def test_a_password_is_asked_for_twice_and_not_shown(kafka: Broker) -> None:
    at = ("-b", kafka.bootstrap_servers)
    for again, code, line in (("secret", 0, "user alice can log in"), ("other", 2, "the two passwords differ")):
        with Terminal("user", "create", "alice", *at) as terminal:
            for question, password in (("password: ", "secret"), ("again: ", again)):
                shown = shown_until(terminal.ours, question)
                os.write(terminal.ours, password.encode() + b"\n")
            shown += shown_until(terminal.ours, line)
            assert terminal.process.wait(SECONDS_MAX) == code
            assert "secret" not in shown
            assert "other" not in shown


def test_ctrl_c_ends_a_question_and_closes_the_connections(kafka: Broker) -> None:
    with Terminal("records", "delete", "asked:0:0", "-b", kafka.bootstrap_servers) as terminal:
        shown_until(terminal.ours, r"\[y/N\] ")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(SECONDS_MAX) == 130
        # A busy machine has shown the question twice; a connection that is not closed would be a line of its own.
        rest = rest_of(terminal.ours).splitlines()
        assert not [line for line in rest if line.strip() and not line.endswith("for good? [y/N] ")], rest


def test_the_reader_of_the_output_ends_early(kafka: Broker, tmp_path: Path) -> None:
    assert called("storage", "format", str(tmp_path / "data"), "--node-id", "1").returncode == 0
    (tmp_path / "data" / "leader-epoch-checkpoint").write_text("0\n0\n" + "1 1\n" * 200_000)
    at = f"-b {kafka.bootstrap_servers}"
    for command in (f"dump {tmp_path}/data", f"dump {tmp_path}/data --json", f"config describe broker 1 --all {at}"):
        line = f"{' '.join(COMMAND)} {command} | head -1; exit ${{PIPESTATUS[0]}}"
        ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=SECONDS_MAX)
        assert (len(ran.stdout.splitlines()), ran.stderr) == (1, ""), command
        assert ran.returncode in (0, 141), command


def test_consume_says_that_it_waits_for_new_records(kafka: Broker) -> None:
    with Terminal("consume", "asked", "-b", kafka.bootstrap_servers) as terminal:
        shown_until(terminal.ours, "waiting for new records; --from-beginning shows older ones")


def test_a_terminal_does_not_obey_records_and_names(kafka: Broker) -> None:
    """A pipe gets records as they are."""
    at = ("-b", kafka.bootstrap_servers)
    kafka.create_topic("hostile")
    assert called("produce", "hostile", *at, stdin="\x1b[2Jcleared\u009b\n").returncode == 0
    read = ("consume", "hostile", "--from-beginning", "--exit-at-end", *at)
    assert called(*read).stdout == "\x1b[2Jcleared\u009b\n"
    for form in ((), ("--json",), ("--format", r"%s\n")):
        with Terminal(*read, *form) as terminal:
            assert "\x1b[2J" not in shown_until(terminal.ours, r"\\u001b\[2Jcleared\\u009b")
    name = "\x1b]0;owned\x07\nforged  classic  Stable"
    moved = called("group", "reset-offsets", name, "--to", "latest", "--topic", "hostile", "--execute", *at)
    assert moved.returncode == 0, moved
    for words in (("list",), ("describe", name), ("describe", name, "--state")):
        shown = called("group", *words, *at).stdout
        assert r"\u001b]0;owned\u0007\u000aforged" in shown
        assert shown.replace("\n", "").isprintable()
        assert not any(line.startswith("forged") for line in shown.splitlines())


def test_what_is_wrong_is_red_on_a_terminal(kafka: Broker) -> None:
    with Terminal("cluster", "health", "--brokers", "3", "-b", kafka.bootstrap_servers) as terminal:
        assert "\x1b[31mhealthy: no\x1b[0m" in shown_until(terminal.ours, "under-replicated")
    assert "\x1b" not in called("cluster", "health", "--brokers", "3", "-b", kafka.bootstrap_servers).stdout
