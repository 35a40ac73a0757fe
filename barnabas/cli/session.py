"""Shared parts of the client commands: how a command reaches the cluster, its exit code, and errors as one line on stderr.

Where a setting comes from, the first that has it: the option, the environment (BARNABAS_BOOTSTRAP, BARNABAS_PROFILE), the file
of --command-config, the profile, the default.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import shlex
import signal
import socket
import stat
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, wraps
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, ParamSpec

from cyclopts import Parameter

from barnabas import client
from barnabas.cli.client_properties import (
    ClientKind,
    ClientProperties,
    WrongCall,
    merged_security,
    read_client_properties,
    security_arguments,
)
from barnabas.cli.profiles import Profiles
from barnabas.cli.streams import READER_GONE, OutputUnwritable, printable
from barnabas.client.errors import AuthorizationFailed, BrokerUnreachable, IllegalState, KafkaError, ResponseError
from barnabas.client.net.core.connection_config import parse_bootstrap
from barnabas.errors import BarnabasError, LocalProtocolError
from barnabas.runtime.loop import loop_factory
from barnabas.runtime.network import AsyncioNetwork
from barnabas.runtime.scope import Scope

if TYPE_CHECKING:
    from barnabas.client import Admin, Consumer, Producer
    from barnabas.pipeline.sinks import SinkAdmin

P = ParamSpec("P")

DEFAULT_BOOTSTRAP: Final = "localhost:9092"
DEFAULT_TIMEOUT_S: Final = 5.0
TIMEOUT_S_MAX: Final = 86_400.0
GRACE_S: Final = 0.7  # from the signal to the end of the process; tests allow one second


class Ended(Exception):
    """Ends the work of a command with an exit code; everything was said before."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(code)


@Parameter(name="*")
@dataclass(frozen=True)
class Connection:
    """The options of every client command that say how to reach the cluster. Makes the clients of the command.

    Its properties and methods raise WrongCall if an option, the file or the profile cannot be used.
    """

    bootstrap_server: Annotated[
        str | None,
        Parameter(
            name=["--bootstrap-server", "--bootstrap", "-b"],
            env_var="BARNABAS_BOOTSTRAP",
            help="HOST[:PORT] of a broker, or several with commas; port 9092 if none is named [default: localhost:9092].",
        ),
    ] = None
    timeout: Annotated[
        float | None, Parameter(help="Seconds until a request without an answer fails [default: 5].")
    ] = None
    profile: Annotated[
        str | None,
        Parameter(env_var="BARNABAS_PROFILE", help="A profile of `barnabas profile` [default: the one in use]."),
    ] = None
    command_config: Annotated[Path | None, Parameter(help="A file of Kafka's client properties.")] = None

    @cached_property
    def sources(self) -> tuple[ClientProperties, ...]:
        """The properties of --command-config and of the profile, in this order."""
        found = [] if self.command_config is None else [read_client_properties(self.command_config)]
        profiles = Profiles()
        name = self.profile or profiles.used
        if name is not None:
            found.append(ClientProperties(profiles.get(name), f"profile {name!r}"))
        return tuple(found)

    @cached_property
    def bootstrap(self) -> str:
        """HOST:PORT of the brokers to ask first, separated by commas; where no port was named it is 9092."""
        place, bootstrap = "--bootstrap-server", self.bootstrap_server
        for source in self.sources:
            if bootstrap is None:
                place, bootstrap = source.place, source.get("bootstrap.servers")
        try:
            addresses = parse_bootstrap(DEFAULT_BOOTSTRAP if bootstrap is None else bootstrap)
        except IllegalState as error:
            raise WrongCall(f"{place}: {error.message.removeprefix('bootstrap_servers: ')}") from None
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses)

    @cached_property
    def timeout_s(self) -> float:
        """The time limit of a request in seconds."""
        timeout = self.timeout
        for source in self.sources:
            if timeout is None and source.get("request.timeout.ms") is not None:
                timeout = source.get("request.timeout.ms") / 1000
        timeout = DEFAULT_TIMEOUT_S if timeout is None else timeout
        if not 0 < timeout <= TIMEOUT_S_MAX or math.isnan(timeout):
            raise WrongCall(f"--timeout {timeout:g}: it must be above 0 and at most {TIMEOUT_S_MAX:.0f} seconds")
        return timeout

    @property
    def timeout_ms(self) -> int:
        """The time limit of a request, at least 1 ms."""
        return max(1, round(self.timeout_s * 1000))

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[Admin]:
        """Runs an Admin, after `check`."""
        await self.check()
        async with client.Admin(**self._arguments("admin")) as admin:
            yield admin

    @asynccontextmanager
    async def sink_admin(self) -> AsyncIterator[SinkAdmin]:
        """Runs a SinkAdmin, after `check`."""
        await self.check()
        async with self.new_sink_admin() as admin:
            yield admin

    def new_sink_admin(self) -> SinkAdmin:
        """Returns a SinkAdmin that is not started yet."""
        from barnabas.pipeline.sinks import SinkAdmin

        return SinkAdmin(**self._arguments("admin"))

    def producer(self, **settings: Any) -> Producer:
        """Returns a Producer that is not started yet; `settings` override those of this connection.

        A record without an acknowledgement fails after the time limit of a request, unless delivery.timeout.ms is set.
        """
        limits = {"max_block_ms": self.timeout_ms, "delivery_timeout_ms": self.timeout_ms}
        return client.Producer(**{**limits, **self._arguments("producer"), **settings})

    def consumer(self, **settings: Any) -> Consumer:
        """Returns a Consumer that is not started yet; `settings` override those of this connection."""
        return client.Consumer(**{**self._arguments("consumer"), **settings})

    @property
    def user(self) -> str | None:
        """The name that this client logs in with by SASL, if it is known."""
        found = self._security.get("sasl_plain_username")
        return found if isinstance(found, str) else None

    def check_settings(self, command: str) -> None:
        """Checks all settings; names on stderr those that have no effect."""
        _ = self.bootstrap, self.timeout_s, self._security
        for source in self.sources:
            for sentence in source.without_effect:
                print(f"barnabas {command}: {sentence}", file=sys.stderr)

    async def check(self) -> None:
        """Returns as soon as one address accepts a connection.

        Raises BrokerUnreachable: none does; at once if all refuse, else after `timeout` seconds.
        """
        addresses = parse_bootstrap(self.bootstrap)
        reached: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        failures: list[str] = []

        async def reach(host: str, port: int) -> None:
            try:
                transport, _ = await AsyncioNetwork().connect(asyncio.Protocol, host, port)
            except (OSError, UnicodeError) as error:
                failures.append(_reason(host, error))
                if len(failures) == len(addresses) and not reached.done():
                    reached.set_result(False)
            else:
                transport.close()
                if not reached.done():
                    reached.set_result(True)

        async with Scope("check") as scope:
            for host, port in addresses:
                scope.start(reach(host, port), name=f"{host}:{port}")
            try:
                async with asyncio.timeout(self.timeout_s):
                    answered = await reached
            except TimeoutError:
                answered = False
                failures.append(f"timed out after {self.timeout_s:g} s")
        if not answered:
            reasons = "; ".join(dict.fromkeys(reason for reason in failures if reason))
            raise BrokerUnreachable(
                f"no broker answers at {self.bootstrap}{f' ({reasons})' if reasons else ''}: "
                f"is one running? try `barnabas up`"
            )

    @property
    def security(self) -> dict[str, str]:
        """The client properties of TLS and SASL."""
        return merged_security(self.sources)

    @cached_property
    def _security(self) -> dict[str, Any]:
        return security_arguments(self.sources)

    def _arguments(self, kind: ClientKind) -> dict[str, Any]:
        properties: dict[str, Any] = {}
        for source in reversed(self.sources):
            properties.update(source.arguments(kind))
        return {
            **properties,
            **self._security,
            "bootstrap_servers": self.bootstrap,
            "request_timeout_ms": self.timeout_ms,
        }


DEFAULT_CONNECTION: Final = Connection()  # the default of the parameter `connection` of a command


def _reason(host: str, error: OSError | UnicodeError) -> str:
    """Why an address cannot be reached; "" for a refused connection, the usual reason."""
    if isinstance(error, UnicodeError):
        return f"{host!r} is not a valid host name"
    if isinstance(error, ConnectionRefusedError):
        return ""
    if isinstance(error, socket.gaierror):
        return f"the name {host!r} cannot be resolved"
    return error.strerror or str(error)


def worked(
    command: str, connection: Connection, work: Coroutine[Any, Any, None], *, check: bool = False, about: str = ""
) -> int:
    """Runs a command's work and returns its exit code; prints a failure in one line on stderr.

    Ctrl-C and SIGTERM cancel the work; the exit code is 130 or 143 then.

    Args:
        check: whether the work begins only if a broker listens, as `Connection.admin` also makes sure.
        about: TYPE:NAME of the resource, for an error of authorization that names none.
    """

    async def main() -> None:
        try:
            if check:
                await connection.check()
        except BaseException:
            work.close()
            raise
        await work

    logging.getLogger("barnabas.client.net").setLevel(logging.ERROR)  # the command itself says that no broker answers
    running = Interruptible()
    try:
        connection.check_settings(command)
    except WrongCall as error:
        work.close()
        return wrong_call(command, str(error))
    try:
        running.run(main())
    except WrongCall as error:
        return wrong_call(command, str(error))
    except Ended as end:
        return running.code or end.code
    except BarnabasError as error:
        if _cannot_be_carried(error):
            return wrong_call(command, _not_text(error) or str(error))
        complain(command, told_reason(command, error, about, connection))
        return running.code or 1
    return running.code


def client_command(
    command: str, *, about: str = ""
) -> Callable[[Callable[P, Coroutine[Any, Any, None]]], Callable[P, int]]:
    """Makes a command of a coroutine function: see `worked`. `Connection.admin` looks for a broker, after the checks of the arguments.

    `about` names parameters of the function, as in "topic:{topic}".
    """

    def decorated(function: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, int]:
        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> int:
            given = signature(function).bind(*args, **kwargs)
            given.apply_defaults()
            resource = about.format(**given.arguments)
            work = function(*args, **kwargs)
            return worked(command, given.arguments["connection"], work, about=resource)

        return run

    return decorated


def local_command(command: str) -> Callable[[Callable[P, None]], Callable[P, int]]:
    """Makes a command of a function that asks no broker. Prints its errors in one line: WrongCall exits with 2, others with 1."""

    def decorated(function: Callable[P, None]) -> Callable[P, int]:
        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> int:
            try:
                function(*args, **kwargs)
            except WrongCall as error:
                return wrong_call(command, str(error))
            except Ended as end:
                return end.code
            except OutputUnwritable:
                raise
            except (BarnabasError, OSError) as error:
                complain(command, error)
                return 1
            return 0

        return run

    return decorated


def _cannot_be_carried(error: BaseException) -> bool:
    """Whether an argument is the cause that no request can carry: a number out of range, or a text that is too long or not UTF-8."""
    return (
        isinstance(error, LocalProtocolError)
        or isinstance(error.__cause__, LocalProtocolError)
        or bool(_not_text(error))
    )


def _not_text(error: BaseException | None) -> str | None:
    """What is wrong if an argument without a form in UTF-8 is the cause of an error; else None."""
    while error is not None and not isinstance(error, UnicodeEncodeError):
        error = error.__cause__ or error.__context__
    return None if error is None else f"the argument {error.object!r} is not UTF-8 text"


# The operation that a command needs on the resource that refuses it; "describe" if it is not here.
_NEEDS: Final = {
    "produce": "write",
    "consume": "read",
    "topic create": "create",
    "topic delete": "delete",
    "topic alter": "alter,alter-configs",
    "group reset-offsets": "read",
    "group delete": "delete",
    "group delete-offsets": "delete",
    "group remove-members": "read",
    "txn abort": "write",
    "txn commit": "write",
    "records delete": "delete",
    "config describe": "describe-configs",
    "config list": "describe-configs",
    "config alter": "alter-configs",
    "config delete": "alter-configs",
    "quota list": "describe-configs",
    "quota set": "alter-configs",
    "quota remove": "alter-configs",
    **dict.fromkeys(("acl add", "acl remove", "user create", "user delete", "broker unregister"), "alter"),
    **dict.fromkeys(("partition elect", "partition balance", "partition reassign", "partition cancel"), "alter"),
    **dict.fromkeys(("features upgrade", "features downgrade"), "alter"),
}


def told_reason(command: str, error: BaseException, about: str, connection: Connection) -> str:
    """The text of an error; for one of authorization with the command that allows what was refused."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, AuthorizationFailed):
        cause = cause.__cause__
    if cause is None or cause.code is None:
        return str(error)
    kind = cause.code.name.removesuffix("_AUTHORIZATION_FAILED").lower().replace("_", "-")
    resource = "cluster" if kind == "cluster" else f"{kind}:{cause.topic}" if kind == "topic" and cause.topic else about
    if not resource.startswith(kind):
        resource = f"{kind}:NAME"
    user = connection.user
    principal = "PRINCIPAL" if user is None else f"User:{user}"
    allowed = shlex.join(["barnabas", "acl", "add", principal, _NEEDS.get(command, "describe"), resource])
    return f"{str(error).rstrip('.')}; an administrator allows it by `{allowed}`"


async def each(
    command: str, names: Iterable[str], act: Callable[[str], Awaitable[None]], connection: Connection, kind: str
) -> None:
    """Does something for each name of resources of this kind, also after a refusal; prints the refusals.

    Raises Ended: the cluster has refused one of them.
    """
    refused = False
    for name in names:
        try:
            await act(name)
        except KafkaError as error:
            if not isinstance(error, ResponseError | IllegalState) or _cannot_be_carried(error):
                raise  # the cluster does not answer, or the call is wrong
            sys.stdout.flush()
            complain(command, told_reason(command, error, f"{kind}:{name}", connection))
            refused = True
    if refused:
        raise Ended(1)


def raiser(errors: Mapping[str, KafkaError]) -> Callable[[str], Awaitable[None]]:
    """What `each` does for names that were refused: raises their errors."""

    async def refuse(name: str) -> None:
        raise errors[name]

    return refuse


def wrong_call(command: str, reason: str) -> int:
    """Prints on stderr why a call is wrong, in one line; returns the exit code 2."""
    complain(command, reason)
    return 2


def complain(command: str, reason: object) -> None:
    """Prints on stderr, in one line, why a command fails."""
    print(printable(f"barnabas {command}: {reason}"), file=sys.stderr)


class Interruptible:
    """Runs one coroutine until it ends or a signal arrives.

    Attributes:
        code: 0, or the exit code of what has ended it.
    """

    def __init__(self) -> None:
        self.code = 0

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Runs `main` on a new loop and raises what it raises. A signal ends it: `code` is not 0 then."""
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            try:
                runner.run(self._guarded(main))
            except (asyncio.CancelledError, KeyboardInterrupt):
                if not self.code:
                    raise

    async def _guarded(self, main: Coroutine[Any, Any, None]) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def end(code: int) -> None:
            self.code = code
            loop.call_later(GRACE_S, self._give_up)
            if task is not None:
                task.cancel()

        def on_signal(number: int) -> None:
            if self.code:
                self._give_up()
            end(128 + number)

        def on_reader_gone(output: int) -> None:
            loop.remove_reader(output)
            if not self.code:
                end(READER_GONE)

        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:  # a shell ignores SIGINT for its background jobs
                    with suppress(NotImplementedError):  # Windows: KeyboardInterrupt ends the loop
                        loop.add_signal_handler(number, on_signal, number)
        if (output := _output_pipe()) is not None:
            with suppress(NotImplementedError):
                # The writing end of a pipe is readable when it has an error.
                loop.add_reader(output, on_reader_gone, output)
        await main

    def _give_up(self) -> None:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(self.code)


def _output_pipe() -> int | None:
    """The descriptor of standard output if it is a pipe."""
    try:
        descriptor = sys.stdout.fileno()
        return descriptor if stat.S_ISFIFO(os.fstat(descriptor).st_mode) else None
    except (OSError, ValueError):  # closed, or a test has put another stream there
        return None
