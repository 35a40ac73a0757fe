"""The command's ends as a process: signals, closed streams, readers that go away, peers that do not answer."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from barnabas.testing import Broker
from tests.support.processes.cli import as_in_a_terminal, called, line_of, shown_until

pytestmark = pytest.mark.process
COMMAND = (sys.executable, "-m", "barnabas.cli.main")
SECONDS_MAX = 60.0


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(SECONDS_MAX)
        yield server


def started(*arguments: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.PIPE,
        preexec_fn=as_in_a_terminal,
    )


@pytest.mark.parametrize(
    ("command", "number"),
    [
        (("produce", "t"), signal.SIGTERM),
        (("consume", "t"), signal.SIGTERM),
        (("cluster", "health", "--exit-when-healthy"), signal.SIGINT),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value.name,
)
def test_a_signal_ends_a_command_that_waits_for_its_peer(
    silent: socket.socket, command: tuple[str, ...], number: signal.Signals
) -> None:
    running = started(*command, "-b", f"127.0.0.1:{silent.getsockname()[1]}", "--timeout", "600")
    try:
        peers = [silent.accept()[0], silent.accept()[0]]  # the look whether somebody listens, then the client
        running.send_signal(number)
        assert running.wait(SECONDS_MAX) == 128 + number
        assert running.communicate() == (b"", b"")
    finally:
        running.kill()
        running.communicate()
        for peer in peers:
            peer.close()


def test_a_signal_ends_a_live_table_of_a_broker_that_has_stopped(served_broker: Broker) -> None:
    running = started("topic", "list", "--watch", "-b", served_broker.bootstrap_servers)
    try:
        assert line_of(running).startswith(b"topic ")
        served_broker.pause()
        running.send_signal(signal.SIGTERM)
        assert running.wait(SECONDS_MAX) == 143
    finally:
        running.kill()
        running.communicate()
        served_broker.resume()


def test_work_that_does_not_end_is_left() -> None:
    """Neither work that ignores its cancellation nor a thread that waits keeps the process."""
    program = """if True:
        import asyncio, time
        from barnabas.cli.session import Interruptible
        async def main():
            asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)
            print("ready", flush=True)
            while True:
                try:
                    await asyncio.sleep(600)
                except asyncio.CancelledError:
                    print("never", flush=True)
        Interruptible().run(main())
    """
    for signals in ((signal.SIGINT,), (signal.SIGTERM, signal.SIGTERM)):
        running = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, preexec_fn=as_in_a_terminal)
        try:
            assert line_of(running) == b"ready\n"
            for number in signals:
                running.send_signal(number)
            assert running.wait(SECONDS_MAX) == 128 + signals[-1]
        finally:
            running.kill()
            running.communicate()


BEGINNINGS = {
    "an import": """
        sys.modules.pop("functools", None)
        class Interrupted:
            def find_spec(self, name, path=None, target=None):
                if name == "functools":
                    raise KeyboardInterrupt
        sys.meta_path.insert(0, Interrupted())
        from barnabas.cli.main import main
        main()
    """,
    "the look at the streams": """
        import barnabas.cli.main as module
        module.repair_streams = interrupt
        module.main()
    """,
    "a coroutine that has not begun": """
        import barnabas.cli.app
        import barnabas.cli.main as module
        async def work(): pass
        def called(arguments):
            coroutine = work()
            interrupt()
        barnabas.cli.app.called = called
        module.main()
    """,
    "the end": """
        import barnabas.cli.main as module
        module.written_out = interrupt
        module.main()
    """,
}


@pytest.mark.parametrize("moment", BEGINNINGS)
def test_ctrl_c_at_the_start_and_at_the_end_is_quiet(moment: str) -> None:
    begin = """
        import sys
        sys.argv = ["barnabas", "--version"]
        def interrupt(*_):
            raise KeyboardInterrupt
    """
    program = textwrap.dedent(begin) + textwrap.dedent(BEGINNINGS[moment])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, b"")


def test_a_shell_that_ignores_ctrl_c_is_obeyed(silent: socket.socket) -> None:
    """As for a job in the background of a script."""
    address = f"127.0.0.1:{silent.getsockname()[1]}"
    running = subprocess.Popen(
        [*COMMAND, "topic", "list", "-b", address],
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        with silent.accept()[0], silent.accept()[0]:
            running.send_signal(signal.SIGINT)
            running.send_signal(signal.SIGTERM)
            assert running.wait(SECONDS_MAX) == 143
    finally:
        running.kill()
        running.communicate()


def test_a_peer_that_is_silent_or_not_kafka_is_told(silent: socket.socket) -> None:
    at = f"127.0.0.1:{silent.getsockname()[1]}"
    quiet = called("topic", "list", "-b", at, "--timeout", "2")
    assert (quiet.returncode, quiet.stderr.count("\n")) == (1, 1)
    assert "accepts connections and does not answer; is it a Kafka broker?" in quiet.stderr

    for _ in range(2):
        silent.accept()[0].close()

    running = started("topic", "list", "-b", at)
    try:
        with silent.accept()[0], silent.accept()[0] as peer:
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            _, said = running.communicate(timeout=SECONDS_MAX)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 1
    assert b"speaks HTTP" in said


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """The address of a broker with the topic `a`."""
    with Broker() as kafka:
        kafka.create_topic("a")
        yield kafka.bootstrap_servers


def shell(line: str, bootstrap: str, folder: Path) -> tuple[int, str, str]:
    """Runs a line in which `barnabas` is the command; returns exit code, stdout, stderr."""
    line = line.replace("barnabas", " ".join(COMMAND))
    environment = {**os.environ, "BARNABAS_BOOTSTRAP": bootstrap, "XDG_CONFIG_HOME": str(folder)}
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


class TestStreams:
    """Through bash, which closes and redirects descriptors."""

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("barnabas topic list >&-", (1, "", "barnabas: cannot write the output: Bad file descriptor\n")),
            ("barnabas topic list 2>&-", (0, "a\n", "")),
            ("barnabas topic list <&-", (0, "a\n", "")),
            ("barnabas topic list <&- >&- 2>&-", (1, "", "")),
            ("barnabas topic list >/dev/full", (1, "", "barnabas: cannot write the output: No space left on device\n")),
            (
                "barnabas topic --help >/dev/full",
                (1, "", "barnabas: cannot write the output: No space left on device\n"),
            ),
            ("barnabas topic describe b 2>/dev/full", (1, "", "")),
            (
                "barnabas topic describe b <&- >&-",
                (1, "", "barnabas topic describe: UNKNOWN_TOPIC_OR_PARTITION: this "),
            ),
            ("barnabas topic describe a --json | head -1; exit ${PIPESTATUS[0]}", (0, "[\n", "")),
            ("barnabas topic list | true; exit ${PIPESTATUS[0]}", (141, "", "")),
            ("barnabas topic list --watch --every 3600 --json | true; exit ${PIPESTATUS[0]}", (141, "", "")),
            ("barnabas consume a | true; exit ${PIPESTATUS[0]}", (141, "", "")),  # no record ever comes
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_streams(self, bootstrap: str, tmp_path: Path, line: str, expected: tuple[int, str, str]) -> None:
        code, out, said = shell(line, bootstrap, tmp_path)
        if "| head" in line and code == 141:
            code = 0  # head may end before the whole document is written
        assert (code, out) == expected[:2], said
        assert said == expected[2] or (expected[2] and said.startswith(expected[2])), said


NO_SPACE = "barnabas: cannot write the output: No space left on device\n"
BAD_DESCRIPTOR = "barnabas: cannot write the output: Bad file descriptor\n"
NO_INPUT = "barnabas produce: cannot read the input: Bad file descriptor; wrote 0 records to "


class TestStreamsOfRecords:
    """The same for commands that read and write records. `TOPIC` has two records at first."""

    @pytest.mark.parametrize(
        ("line", "expected", "written"),
        [
            ("barnabas produce TOPIC <&-", (1, "", NO_INPUT), 0),
            ("echo x | barnabas produce TOPIC >&-", (0, "", "wrote 1 record to "), 1),
            ("echo x | barnabas produce TOPIC 2>/dev/full", (0, "", ""), 1),
            ("barnabas consume TOPIC -n 2 --from-beginning >&-", (1, "", BAD_DESCRIPTOR), 0),
            ("barnabas consume TOPIC -n 2 --from-beginning >/dev/full", (1, "", NO_SPACE), 0),
            ("barnabas consume TOPIC --from-beginning --group g >/dev/full", (1, "", NO_SPACE), 0),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_streams(
        self, shared_broker: Broker, tmp_path: Path, line: str, expected: tuple[int, str, str], written: int
    ) -> None:
        topic = f"streams-{uuid.uuid4()}"
        shared_broker.create_topic(topic)
        servers = shared_broker.bootstrap_servers
        assert called("produce", topic, "-b", servers, stdin="a\nb\n").returncode == 0
        code, out, said = shell(
            line.replace("TOPIC", topic).replace("--group g", f"--group {topic}"), servers, tmp_path
        )
        assert (code, out, said.replace(topic, "")[: len(expected[2])]) == expected, said
        assert bool(said) == bool(expected[2])
        read = called("consume", topic, "-b", servers, "--from-beginning", "-e").stdout
        assert read == "a\nb\n" + written * "x\n"
        if "--group" in line:
            groups = called("group", "describe", topic, "-b", servers, "--json")
            offsets = json.loads(groups.stdout)[0]["offsets"] if groups.returncode == 0 else []
            assert not [each for each in offsets if each["committed_offset"]], "what was not printed is not committed"


def test_a_live_table_in_a_terminal_is_shown_in_place(shared_broker: Broker) -> None:
    """No line is wrapped, however long a name is: its middle is left out."""
    at = ("-b", shared_broker.bootstrap_servers)
    name = "n" * 200
    shared_broker.create_topic(name)
    ours, theirs = os.openpty()
    running = started("topic", "list", "--watch", "--every", "0.2", *at, stdout=theirs)
    os.close(theirs)
    try:
        shown = shown_until(ours, r"n{5}…n{5}")
        shared_broker.create_topic("a-second")
        shown += shown_until(ours, r"a-second")
        assert "\x1b[1A" in shown
        assert "…" in shown
        running.send_signal(signal.SIGINT)
        assert running.wait(SECONDS_MAX) == 130
    finally:
        running.kill()
        _, said = running.communicate()
        os.close(ours)
    assert said == b""


def in_a_terminal(*arguments: str, **environment: str) -> tuple[int, str]:
    """Runs the command on a terminal of 80 columns; returns its exit code and what appears there."""
    ours, theirs = os.openpty()
    running = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "80", "TERM": "xterm-256color", **environment},
    )
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 65_536):
            shown += data
    except OSError:  # EIO: the command has ended
        pass
    finally:
        os.close(ours)
        code = running.wait(SECONDS_MAX)
    return code, shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    "words",
    [
        "topic list --long",
        "topic describe missing",
        "txn list --state Foo",
    ],
)
def test_a_terminal_shows_what_a_pipe_gets(bootstrap: str, tmp_path: Path, words: str) -> None:
    """Plain text without colours, and lines of at most 80 columns for tables with short names."""
    environment = {"BARNABAS_BOOTSTRAP": bootstrap, "XDG_CONFIG_HOME": str(tmp_path)}
    code, shown = in_a_terminal(*words.split(), **environment)
    piped = called(*words.split(), environment=environment)
    assert (code, shown) == (piped.returncode, piped.shown)
    if not code:
        assert max(map(len, shown.splitlines())) <= 80


def test_help_has_colours_on_a_terminal_only() -> None:
    assert "\x1b[" not in called("topic", "list", "--help").stdout
    _, shown = in_a_terminal("topic", "list", "--help", NO_COLOR="1")
    assert not re.search(r"\x1b\[[\d;]*(3\d|9\d)", shown), "bold is allowed, colours are not"


def test_bash_completes_commands_and_names(tmp_path: Path) -> None:
    """Names of topics and groups come from the cluster, those of profiles from a file."""
    script = tmp_path / "completion.bash"
    script.write_text(called("completion", "bash").stdout)
    ask = f"""source {script}
        barnabas() {{ {sys.executable} -m barnabas.cli.main "$@"; }}
        complete_words() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _barnabas; echo "${{COMPREPLY[*]}}"; }}
        barnabas profile create staging -b kafka:9092 > {os.devnull}
        complete_words barnabas to
        complete_words barnabas group de
        complete_words barnabas topic create --par
        complete_words barnabas config describe ''
        complete_words barnabas profile use ''
        complete_words barnabas topic describe or
        complete_words barnabas consume --profile s"""
    with Broker() as kafka:
        kafka.create_topic("orders")
        environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "BARNABAS_BOOTSTRAP": kafka.bootstrap_servers}
        done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, timeout=60, env=environment)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "topic",
        "delete delete-offsets describe",
        "--partitions",
        "topic broker broker-logger client-metrics group",
        "staging",
        "orders",
        "staging",
    ]
