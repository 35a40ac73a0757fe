"""Strangers: connections that send fuzzed bytes before a login, and a judgement of each answer; a broker for them.

Driven by: tests. Emits: requests over plaintext and over TLS, and raw TLS messages; faults.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from joserfc.jwk import ECKey

from tests.support.processes.ports import free_ports
from tests.support.processes.served import ServedBroker
from tests.support.security.certificates import CertificateAuthority
from tests.support.security.login_frames import LAST_CORRELATION, LoginFrames, Sent

USER: Final = ("alice", "planted-user-secret")  # of PLAIN

LANES: Final = 24
ANSWER_S_MAX: Final = 60.0  # far above what any answer takes on a busy machine
PATIENCE_S: Final = 0.3
OVER_TLS_EVERY: Final = 16  # connections; a handshake costs more than all requests after it
RAW_TLS_EVERY: Final = 3
TLS_RECORDS: Final = (0x15, 0x16)  # alert, handshake


class OpenBroker(ServedBroker):
    """A broker with a plaintext listener (`plain`) and those that strangers try, for all mechanisms.

    Attributes:
        ports: of the listeners, by what Strangers calls them.
    """

    def __init__(self, folder: Path, ca: CertificateAuthority, *more: str, module: str = "barnabas.cli.main") -> None:
        plain, login, tls_login, tls = free_ports(4)
        self.ports = {"login": login, "login over TLS": tls_login, "TLS": tls}
        keys = folder / "keys.json"
        key = ECKey.generate_key("P-256", {"kid": "first", "use": "sig"})
        keys.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
        jaas = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER[0]}="{USER[1]}";'
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{plain},LOGIN://127.0.0.1:{login},BOTH://127.0.0.1:{tls_login},"
            f"TLS://127.0.0.1:{tls}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,BOTH:SASL_SSL,TLS:SSL",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
            "listener.name.login.plain.sasl.jaas.config": jaas,
            "listener.name.both.plain.sasl.jaas.config": jaas,
            "connection.failed.authentication.delay.ms": "0",
            **ca.issue("open-broker").by_file(),
        }
        given = (f"{key}={text}" for key, text in settings.items())
        super().__init__(folder / "data", *given, *more, module=module, listens=False)
        self.plain_port = plain

    @property
    def plain(self) -> str:
        """The plaintext listener."""
        return f"{self.host}:{self.plain_port}"


@dataclass
class Outcome:
    """What became of the frames."""

    connections: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    answers: int = 0
    answered_bytes: int = 0
    faults: list[str] = field(default_factory=list)


class Strangers:
    """One run against one broker.

    Args:
        ports: of its listeners "login" (SASL_PLAINTEXT), "login over TLS" (SASL_SSL) and "TLS" (SSL).
    """

    def __init__(self, ports: dict[str, int], seed: int) -> None:
        self._ports = ports
        self._frames = LoginFrames(seed)
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        self.outcome = Outcome()

    def run(self, count: int) -> Outcome:
        """Sends `count` frames at least."""
        asyncio.run(self._all(self.outcome.sent + count))
        return self.outcome

    async def _all(self, most: int) -> None:
        connections = self._connections(most)
        await asyncio.gather(*(self._lane(connections) for _ in range(LANES)))

    def _connections(self, most: int) -> Iterator[tuple[str, Sent]]:
        number = 0
        while self.outcome.sent < most:
            number += 1
            kind = "TLS" if number % RAW_TLS_EVERY == 0 else "login"
            if number % OVER_TLS_EVERY == 1:
                kind = "login over TLS"
            sent = self._frames.tls() if kind == "TLS" else self._frames.requests()
            self.outcome.sent += sent.frames
            self.outcome.connections[kind] += 1
            yield kind, sent

    async def _lane(self, connections: Iterator[tuple[str, Sent]]) -> None:
        for kind, sent in connections:
            context = self._tls if kind == "login over TLS" else None
            try:
                async with asyncio.timeout(ANSWER_S_MAX):
                    reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[kind], ssl=context)
                    answer = await self._answer(reader, writer, sent.data)
            except TimeoutError:
                self.outcome.faults.append(f"{kind} is not ended: {sent.data[:400].hex()}")
                continue
            self.outcome.answered_bytes += len(answer)
            wrong = _wrong_tls(answer) if kind == "TLS" else self._wrong(answer)
            if wrong:
                self.outcome.faults.append(f"{kind} {wrong}: {sent.data[:400].hex()}")

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
        """Sends all and returns what comes until the broker ends the connection."""
        found = b""
        ends = writer.can_write_eof()  # not over TLS: there the broker may wait for the rest of a frame
        try:
            writer.write(data)
            if ends:
                writer.write_eof()
            while part := await asyncio.wait_for(reader.read(65_536), None if ends else PATIENCE_S):
                found += part
        except TimeoutError:
            if ends:
                raise
        except OSError:
            pass  # it has ended the connection before it had read all
        finally:
            writer.transport.abort()
        return found

    def _wrong(self, answer: bytes) -> str:
        """What is wrong with answers to requests; empty: nothing."""
        at = 0
        while at < len(answer):
            size = int.from_bytes(answer[at : at + 4], "big", signed=True)
            at += 4
            if size < 0 or at + size > len(answer):
                return f"is answered with a cut frame of {size} bytes"
            if size >= 4 and int.from_bytes(answer[at : at + 4], "big") == LAST_CORRELATION:
                return "has Metadata answered"
            self.outcome.answers += 1
            at += size
        return ""


def _wrong_tls(answer: bytes) -> str:
    return "" if not answer or answer[0] in TLS_RECORDS else f"is answered with {answer[:40]!r}"
