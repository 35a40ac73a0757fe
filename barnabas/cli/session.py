"""Shared parts of the client commands: how a command reaches the cluster, and errors as one line on stderr."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, Final

from cyclopts import Parameter

from barnabas.client import Consumer, Producer
from barnabas.client.admin import Admin
from barnabas.client.errors import BrokerUnreachable, KafkaError
from barnabas.client.net.bootstrap import parse_bootstrap
from barnabas.runtime.loop import run

__all__ = ["DEFAULT_CONNECTION", "Connection", "Settings", "key_values", "worked", "wrong_call"]

DEFAULT_BOOTSTRAP: Final = "localhost:9092"

Settings = Annotated[tuple[str, ...], Parameter(negative=(), help="key=value, Kafka's config names; may be repeated.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Connection:
    """The options of every client command that say how to reach the cluster. Makes the clients of the command."""

    bootstrap_server: Annotated[
        str | None,
        Parameter(
            name=["--bootstrap-server", "--bootstrap", "-b"],
            env_var="BARNABAS_BOOTSTRAP",
            help="HOST:PORT of a broker, or several with commas [default: localhost:9092].",
        ),
    ] = None
    timeout: Annotated[float, Parameter(help="Seconds until a request without an answer fails.")] = 5.0

    @property
    def bootstrap(self) -> str:
        """HOST:PORT of the brokers to ask first, separated by commas."""
        return self.bootstrap_server or DEFAULT_BOOTSTRAP

    @property
    def timeout_ms(self) -> int:
        """The time limit of a request, at least 1 ms."""
        return max(1, round(self.timeout * 1000))

    def admin(self, **settings: Any) -> Admin:
        """Returns an Admin that is not started yet; `settings` override those of this connection."""
        return Admin(**{"bootstrap_servers": self.bootstrap, "request_timeout_ms": self.timeout_ms, **settings})

    def producer(self, **settings: Any) -> Producer:
        """Returns a Producer that is not started yet; `settings` override those of this connection."""
        return Producer(**{"bootstrap_servers": self.bootstrap, **settings})

    def consumer(self, **settings: Any) -> Consumer:
        """Returns a Consumer that is not started yet; `settings` override those of this connection."""
        return Consumer(**{"bootstrap_servers": self.bootstrap, **settings})

    async def check(self) -> None:
        """Returns as soon as one address accepts a connection.

        Raises:
            BrokerUnreachable: none does; at once if all refuse, else after `timeout` seconds.
        """
        asking = [asyncio.ensure_future(_accepts(host, port)) for host, port in parse_bootstrap(self.bootstrap)]
        try:
            for answer in asyncio.as_completed(asking, timeout=self.timeout):
                if await answer:
                    return
        except TimeoutError:
            pass
        finally:
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        raise BrokerUnreachable(f"no broker answers at {self.bootstrap}: is one running? try `barnabas up`")


DEFAULT_CONNECTION: Final = Connection()  # the default of the parameter `connection` of a command


async def _accepts(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


def worked(command: str, connection: Connection, work: Coroutine[Any, Any, None]) -> int:
    """Runs a command's work and returns its exit code; prints a failure in one line on stderr."""

    async def main() -> None:
        try:
            await connection.check()
        except BaseException:
            work.close()
            raise
        await work

    try:
        run(main())
    except KafkaError as error:
        print(f"barnabas {command}: {error}", file=sys.stderr)
        return 1
    return 0


def wrong_call(command: str, reason: str) -> int:
    """Prints on stderr why a call is wrong, in one line; returns the exit code 2."""
    print(f"barnabas {command}: {reason}", file=sys.stderr)
    return 2


def key_values(command: str, assignments: tuple[str, ...]) -> dict[str, str]:
    """Parses `key=value` arguments into a mapping; exits with 2 if one has another form."""
    for assignment in assignments:
        if "=" not in assignment:
            raise SystemExit(wrong_call(command, f"{assignment!r} is not key=value"))
    return dict(assignment.split("=", 1) for assignment in assignments)
