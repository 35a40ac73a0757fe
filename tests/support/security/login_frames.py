"""Bytes that strangers send before a login: well-formed beginnings, then mutated requests, tokens and TLS messages.

Driven by: tests, one connection at a time. Emits: what one connection sends. The same seed gives the same bytes.
No token can be a valid login: names exist, passwords and signatures are wrong. The last frame of a connection is a Metadata request,
which no broker may answer.
"""

from __future__ import annotations

import base64
import json
import random
import ssl
from struct import pack
from typing import Any, Final, NamedTuple

from tests.support.requests import Fields, frame_of, request_of

LAST_CORRELATION: Final = 0x4D455441  # of the Metadata request at the end
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI", "plain", "")
LENGTHS: Final = (-(2**31), -1, 0, 1, 3, 8, 2**20, 2**31 - 1)
SOFTWARE: Final[Fields] = {"client_software_name": "x", "client_software_version": "1"}
FRAMES_MAX: Final = 12  # of one connection


class Sent(NamedTuple):
    """What one connection sends.

    Attributes:
        frames: their number, without the one at the end.
    """

    data: bytes
    frames: int


def frame(api: str, version: int, correlation: int = 1, **fields: Any) -> bytes:
    return frame_of(request_of(api, **fields), version, correlation, "fuzz")


_END: Final = frame("Metadata", 8, LAST_CORRELATION, topics=None)


def _jwt(**header: object) -> bytes:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    claims = {"sub": "alice", "exp": 4_102_444_800, "iat": 1, "aud": "kafka", "scope": ["a", "b"]}
    signature = base64.urlsafe_b64encode(bytes(64)).rstrip(b"=").decode()
    return f"n,,\1auth=Bearer {part(header)}.{part(claims)}.{signature}\1\1".encode()


TOKENS: Final[tuple[bytes, ...]] = (
    b"\0alice\0wrong",
    b"alice\0alice\0wrong",
    b"\0" + b"a" * 5_000 + b"\0wrong",
    b"\0\xff\xfe\0\xff",
    b"n,,n=alice,r=fyko+d2lbbFgONRv9qkxdawL",
    b"n,a=alice,n=alice,r=fyko,tokenauth=true",
    b"n,,n=" + b"=2C=3D" * 600 + b",r=x",
    b"p=tls-unique,,n=alice,r=x",
    b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
    b"c=biws,r=" + b"r" * 7_000 + b",p=AAAA",
    _jwt(alg="ES256", kid="first"),
    _jwt(alg="none"),
    _jwt(alg="HS256", kid="first"),
    _jwt(alg="ES256", kid="x" * 1_000, jku="http://127.0.0.1:1/keys", crit=["exp"]),
    b"n,,\1auth=Bearer " + b"A" * 9_000 + b".A.A\1\1",
    b"n,,\1auth=Bearer eyJ" + b"[" * 3_000 + b".e30.\1\1",
    b"\1",
    b"",
    b"`\x82\x01\x02\x06\t*\x86H\x86\xf7\x12\x01\x02\x02",
)


def client_hellos() -> list[bytes]:
    """First messages of TLS clients: 1.2 and 1.3, with and without a name, with protocols of applications."""
    found = []
    for low, high in (
        (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2),
        (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3),
    ):
        for name in ("localhost", None):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            context.minimum_version, context.maximum_version = low, high
            context.set_alpn_protocols(["h2", "kafka"])
            outgoing = ssl.MemoryBIO()
            try:
                context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name).do_handshake()
            except ssl.SSLWantReadError:
                found.append(outgoing.read())
    return found


class LoginFrames:
    """Makes what connections send.

    Args:
        seed: of all choices.
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._hellos = client_hellos()

    def requests(self, most: int = FRAMES_MAX) -> Sent:
        """Requests of a login: some well-formed, the others not, and the Metadata request."""
        rng = self._rng
        parts: list[bytes] = []
        if rng.random() < 0.5:
            parts.append(frame("ApiVersions", 3, **SOFTWARE))
        version = rng.choice((0, 1, 1, 1))
        if rng.random() < 0.85:
            parts.append(frame("SaslHandshake", version, mechanism=rng.choice(MECHANISMS[:4])))
        while len(parts) < most and (len(parts) < 2 or rng.random() < 0.6):
            parts.append(self._one(raw=version == 0))
        return Sent(b"".join(parts) + _END, len(parts))

    def tls(self) -> Sent:
        """Messages of a TLS client, mutated."""
        rng = self._rng
        parts = []
        for _ in range(rng.choice((1, 1, 2, 3))):
            kind = rng.randrange(4)
            if kind == 0:
                size = rng.choice((0, 1, 40, 300))
                parts.append(
                    pack(">BHH", rng.choice((20, 21, 22, 23, 24, 255)), rng.choice((0x301, 0x303, 0xFFFF)), size)
                )
                parts.append(rng.randbytes(size))
            elif kind == 1:
                parts.append(rng.randbytes(rng.choice((1, 5, 60, 700))))
            else:
                parts.append(self._mutated(rng.choice(self._hellos), fewest=kind - 2))
        return Sent(b"".join(parts), len(parts))

    def _one(self, *, raw: bool) -> bytes:
        rng = self._rng
        kind = rng.randrange(10)
        if kind == 0:
            body = rng.randbytes(rng.choice((0, 1, 9, 60, 3_000)))
            return pack(">i", rng.choice((len(body), len(body), *LENGTHS))) + body
        if kind == 1:
            mechanism = rng.choice((*MECHANISMS, "PLAIN\0", "A" * 300, "SCRAM-SHA-256-PLUS", "ＰＬＡＩＮ"))
            found = frame("SaslHandshake", rng.randrange(2), mechanism=mechanism)
        elif kind == 2:
            found = frame("ApiVersions", rng.randrange(4), **SOFTWARE)
        else:
            token = rng.choice(TOKENS)
            token = token if rng.random() < 0.3 else self._mutated(token)
            if raw and rng.random() < 0.7:
                return pack(">i", len(token)) + token
            found = frame("SaslAuthenticate", rng.randrange(3), auth_bytes=token)
        if rng.random() < 0.4:
            changed = self._mutated(found[4:])
            found = pack(">i", len(changed)) + changed
        return found

    def _mutated(self, data: bytes, fewest: int = 1) -> bytes:
        rng = self._rng
        changed = bytearray(data)
        for _ in range(rng.randrange(fewest, 5)):
            at = rng.randrange(len(changed) + 1)
            match rng.randrange(6):
                case 0:
                    changed[at : at + 1] = bytes([rng.randrange(256)])
                case 1:
                    del changed[at : at + rng.choice((1, 2, 30))]
                case 2:
                    changed[at:at] = rng.randbytes(rng.choice((1, 4, 50)))
                case 3:
                    changed[at:at] = changed[at : at + rng.choice((1, 8, 200))]
                case 4:
                    changed[at : at + 2] = rng.choice((b"\x7f\xff", b"\xff\xff", b"\0\0", b"\x80\0"))
                case _:
                    changed[at : at + 4] = pack(">i", rng.choice(LENGTHS))
        return bytes(changed)
