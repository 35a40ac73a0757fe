"""Requests about delegation tokens, to be sent to Kafka and to Barnabas: every field of the answers, with times as durations.

The broker has a listener without a login, and one with PLAIN and SCRAM-SHA-256. A user's password for PLAIN is its name; `ACLS` says what
each user may do. `GOLDEN` holds the answers of Kafka.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from barnabas.errors import ErrorCode
from barnabas.protocol.acls import AclOperation as Op
from barnabas.protocol.acls import AclPermission, PatternType
from barnabas.protocol.acls import AclResourceType as Kind
from tests.support.oracle.permission_cases import Acl
from tests.support.oracle.sasl_script import SaslWire, Scram, plain
from tests.support.oracle.wire import Wire
from tests.support.processes.attempts import attempts
from tests.support.requests import Fields, request_of

GOLDEN: Final = Path(__file__).parents[2] / "golden" / "security" / "delegation-tokens.json"
SECRET: Final = "planted-secret-of-tokens"
USERS: Final = ("alice", "bob", "carol", "maker", "seer", "reader", "prefix", "denied", "admin")  # admin: a super user
JAAS: Final = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" password="admin" '
    + " ".join(f'user_{name}="{name}"' for name in USERS)
    + ";"
)
ALICE: Final = "User:alice"
ACLS: Final = [
    ("maker", Acl(Op.CREATE_TOKENS, Kind.USER, ALICE)),
    ("seer", Acl(Op.DESCRIBE_TOKENS, Kind.USER, ALICE)),
    ("reader", Acl(Op.DESCRIBE, Kind.DELEGATION_TOKEN, "*")),
    ("prefix", Acl(Op.CREATE_TOKENS, Kind.USER, "User:", PatternType.PREFIXED)),
    ("prefix", Acl(Op.DESCRIBE_TOKENS, Kind.USER, "User:", PatternType.PREFIXED)),
    ("denied", Acl(Op.CREATE_TOKENS, Kind.USER, ALICE)),
    ("denied", Acl(Op.CREATE_TOKENS, Kind.USER, ALICE, permission=AclPermission.DENY)),
    ("denied", Acl(Op.DESCRIBE_TOKENS, Kind.USER, "*")),
    ("denied", Acl(Op.DESCRIBE_TOKENS, Kind.USER, ALICE, permission=AclPermission.DENY)),
]
DAY_MS: Final = 86_400_000
HUGE_MS: Final = 2**63 - 1
LIVES_MS: Final = (1_000, DAY_MS, 3 * DAY_MS, 7 * DAY_MS)
NEAR_MS: Final = 60_000  # times of two clocks that far apart are the same
STATED_MAX_MS: Final = 1_000_000_000_000  # above it a number is a time, not a duration


class Asker:
    """A conversation: connections of users, tokens by name, and the notes of all answers."""

    def __init__(self, plaintext: str, guarded: str) -> None:
        self.plaintext = plaintext
        self.guarded = guarded
        self.notes: dict[str, Any] = {}
        self.tokens: dict[str, Any] = {}
        self.wires: dict[str, Wire] = {}

    def wire(self, user: str) -> Wire:
        """The connection of a user: `anonymous`, a name, or `token NAME`."""
        if user not in self.wires:
            if user == "anonymous":
                self.wires[user] = Wire(self.plaintext)
            elif user.startswith("token "):
                self.wires[user] = self.by_token(user.removeprefix("token "))
            else:
                found = SaslWire(self.guarded)
                found.handshake("PLAIN")
                found.token(plain(user, user))
                self.wires[user] = found
        return self.wires[user]

    def by_token(self, name: str) -> SaslWire:
        """A connection that logs in by a token."""
        found, made = SaslWire(self.guarded), self.tokens[name]
        client = Scram(made.token_id, base64.b64encode(made.hmac).decode(), extension=",tokenauth=true")
        found.handshake("SCRAM-SHA-256")
        if challenge := found.token(client.first()):
            found.token(client.final(challenge))
        return found

    def login(self, case: str, name: str) -> None:
        """Notes the outcome of a login by a token: the last code of the broker."""
        with self.by_token(name) as wire:
            self.notes[case] = [str(ErrorCode(wire.said[-1][1]).name)]

    def note(self, case: str, answer: Any) -> Any:
        assert case not in self.notes, case
        self.notes[case] = self.outline(answer)
        return answer

    def create(self, case: str, user: str, *, version: int = 3, token: str = "", **fields: Any) -> None:
        """CreateDelegationToken; `token` names what is made, and the case waits until it is known."""
        fields.setdefault("max_lifetime_ms", -1)
        answer = self.wire(user).call(request_of("CreateDelegationToken", **fields), version)
        if not answer.error_code:
            self.tokens[token or case] = answer
            self.until(lambda found: answer.token_id in found)
        self.note(case, answer)

    def renew(self, case: str, user: str, token: str | bytes, period_ms: int = -1) -> None:
        hmac = token if isinstance(token, bytes) else self.tokens[token].hmac
        request = request_of("RenewDelegationToken", hmac=hmac, renew_period_ms=period_ms)
        self.changed(self.note(case, self.wire(user).call(request, 2)), token)

    def expire(self, case: str, user: str, token: str | bytes, period_ms: int = -1) -> None:
        hmac = token if isinstance(token, bytes) else self.tokens[token].hmac
        request = request_of("ExpireDelegationToken", hmac=hmac, expiry_time_period_ms=period_ms)
        answer = self.note(case, self.wire(user).call(request, 2))
        if not answer.error_code and period_ms < 0:
            assert isinstance(token, str)
            self.until(lambda found: self.tokens[token].token_id not in found)
        else:
            self.changed(answer, token)

    def describe(self, case: str, user: str, owners: Iterable[str] | None, version: int = 3) -> None:
        named = None if owners is None else [principal(each) for each in owners]
        self.note(case, self.wire(user).call(request_of("DescribeDelegationToken", owners=named), version))

    def changed(self, answer: Any, token: str | bytes) -> None:
        """Waits until the broker knows the new expiry."""
        if not answer.error_code and isinstance(token, str):
            wanted = self.tokens[token].token_id, answer.expiry_timestamp_ms
            self.until(lambda found: (wanted[0], found.get(wanted[0])) == wanted)

    def until(self, settled: Callable[[dict[str, int]], bool]) -> None:
        """Waits until the broker shows what the controller decided: Kafka answers before that."""
        for _ in attempts("the broker shows what the controller decided"):
            answer = self.wire("admin").call(request_of("DescribeDelegationToken", owners=None), 3)
            if settled({each.token_id: each.expiry_timestamp for each in answer.tokens}):
                return

    def outline(self, answer: Any) -> dict[str, Any]:
        """Every field of an answer; ids as names of tokens, times as durations, secrets as their lengths."""
        found: dict[str, Any] = {}
        issued = getattr(answer, "issue_timestamp_ms", getattr(answer, "issue_timestamp", 0))
        for field in answer.FIELDS:  # not in older versions: their defaults
            name, value = field.name, getattr(answer, field.name)
            if name == "error_code":
                found[name] = ErrorCode(value).name
            elif name == "token_id":
                names = {made.token_id: each for each, made in self.tokens.items()}
                found[name] = names.get(value, value)
            elif name == "hmac":
                found[name] = len(value)
            elif isinstance(value, list):
                parts = [self.outline(each) for each in value]
                found[name] = sorted(parts, key=repr)
            elif isinstance(value, int) and value > STATED_MAX_MS:
                found[name] = duration(value, issued)
            else:
                found[name] = value
        return found


def duration(then_ms: int, issued_ms: int) -> Any:
    """A time: one of the exact lives from the issue, else from now in whole minutes."""
    now_ms = time.time() * 1000
    if issued_ms > STATED_MAX_MS and then_ms == issued_ms:
        return "now" if abs(then_ms - now_ms) < NEAR_MS else "not now"
    if then_ms - issued_ms in LIVES_MS:
        return f"issue + {then_ms - issued_ms} ms"
    return f"now + {round((then_ms - now_ms) / NEAR_MS)} minutes"


def principal(text: str) -> Fields:
    kind, _, name = text.partition(":")
    return {"principal_type": kind, "principal_name": name}


def asked(plaintext: str, guarded: str) -> dict[str, Any]:
    """Asks everything about tokens, on a broker that has none yet; returns the notes."""
    asker = Asker(plaintext, guarded)
    try:
        _creations(asker)
        _renewals(asker)
        _expirations(asker)
        _descriptions(asker)
    finally:
        for wire in asker.wires.values():
            wire.close()
    return asker.notes


def asked_without_tokens(plaintext: str, guarded: str) -> dict[str, Any]:
    """Asks a broker that has no secret key."""
    asker = Asker(plaintext, guarded)
    for user in ("anonymous", "alice"):
        asker.create(f"no secret: create by {user}", user, renewers=[principal("User:bob")])
        asker.renew(f"no secret: renew by {user}", user, b"x")
        asker.expire(f"no secret: expire by {user}", user, b"x")
        asker.describe(f"no secret: describe by {user}", user, None)
        asker.describe(f"no secret: describe none by {user}", user, [])
    wrong: dict[str, Any] = {"owner_principal_type": "User", "owner_principal_name": "bob"}
    asker.create("no secret: create for another owner", "alice", **wrong)
    asker.create("no secret: create, renewer of another type", "alice", renewers=[principal("Group:g")])
    for wire in asker.wires.values():
        wire.close()
    return asker.notes


def _creations(a: Asker) -> None:
    alice: dict[str, Any] = {"owner_principal_type": "User", "owner_principal_name": "alice"}
    bob: dict[str, Any] = {"owner_principal_type": "User", "owner_principal_name": "bob"}
    a.create("create: anonymous", "anonymous")
    a.create("create: anonymous for alice", "anonymous", **alice)
    for version in (1, 2, 3):
        a.create(f"create: version {version}", "alice", version=version, renewers=[principal("User:bob")])
    for name, period_ms in (("0", 0), ("1 s", 1_000), ("-5", -5), ("huge", HUGE_MS), ("3 days", 3 * DAY_MS)):
        a.create(f"create: life of {name}", "alice", max_lifetime_ms=period_ms)
    a.expire("expire: a life of 1 s", "alice", "create: life of 1 s")
    a.create("create: own name", "alice", **alice)
    a.create("create: own name of another type", "alice", owner_principal_type="Group", owner_principal_name="alice")
    a.create("create: own name without a type", "alice", owner_principal_name="alice", owner_principal_type="")
    a.create("create: empty name", "alice", owner_principal_type="User", owner_principal_name="")
    a.create("create: a type alone", "alice", owner_principal_type="Group", owner_principal_name="")
    a.create("create: renewer of another type", "alice", renewers=[principal("User:bob"), principal("Group:g")])
    a.create("create: renewer without a name", "alice", renewers=[principal("User:")])
    a.create("create: the same renewer twice", "alice", renewers=[principal("User:bob"), principal("User:bob")])
    a.create("create: its owner renews", "alice", renewers=[principal("User:alice")])
    a.create("create: for bob, not allowed", "alice", **bob)
    a.create("create: for bob, renewer of another type", "alice", renewers=[principal("Group:g")], **bob)
    a.create("create: for alice, allowed", "maker", token="made for alice", **alice)
    a.create("create: for alice, version 2 has no owner", "maker", version=2)
    a.create("create: for alice, renewer of another type", "maker", renewers=[principal("Group:g")], **alice)
    a.create("create: for bob, allowed is alice", "maker", **bob)
    a.create("create: for alice, by prefix", "prefix", renewers=[principal("User:carol")], **alice)
    a.create(
        "create: for another type, by prefix", "prefix", owner_principal_type="Group", owner_principal_name="alice"
    )
    a.create("create: for alice, denied", "denied", **alice)
    a.create("create: for bob, super user", "admin", token="of bob", **bob)
    a.login("login: by a token", "create: version 3")
    a.login("login: by a token that another user made", "made for alice")
    holder = "token create: version 3"
    a.create("create: by a token", holder)
    a.create("create: by a token for alice", holder, **alice)


def _renewals(a: Asker) -> None:
    token = "create: version 3"
    for name, period_ms in (("-1", -1), ("0", 0), ("-7", -7), ("an hour", 3_600_000), ("huge", HUGE_MS)):
        a.renew(f"renew: by the owner, {name}", "alice", token, period_ms)
    a.renew("renew: above the longest life", "alice", "create: life of 3 days", 5 * DAY_MS)
    a.renew("renew: by a renewer", "bob", token, 7_200_000)
    a.renew("renew: by a stranger", "carol", token)
    a.renew("renew: by the maker", "maker", "made for alice")
    a.renew("renew: by its owner, made by another", "alice", "made for alice")
    a.renew("renew: by a super user", "admin", token)
    a.renew("renew: by a token", f"token {token}", token)
    a.renew("renew: anonymous", "anonymous", token)
    for user in ("alice", "carol", "anonymous"):
        a.renew(f"renew: unknown, by {user}", user, b"x" * 64)
    a.renew("renew: empty", "alice", b"")


def _expirations(a: Asker) -> None:
    for number in range(1, 6):
        a.create(f"expire: token {number}", "alice", renewers=[principal("User:bob")])
    token = "expire: token 1"
    a.expire("expire: by a stranger", "carol", token)
    a.expire("expire: by a stranger, later", "carol", token, 3_600_000)
    a.expire("expire: by a super user", "admin", token)
    a.expire("expire: by the maker", "maker", "made for alice")
    a.expire("expire: by a token", f"token {token}", token)
    a.expire("expire: anonymous", "anonymous", token)
    a.expire("expire: unknown", "alice", b"x" * 64)
    a.expire("expire: empty", "alice", b"", 5)
    a.expire("expire: in two hours", "alice", token, 7_200_000)
    a.expire("expire: huge", "alice", token, HUGE_MS)
    a.expire("expire: by a renewer, in an hour", "bob", token, 3_600_000)
    a.expire("expire: by a renewer, now", "bob", token, -1)
    a.expire("expire: again", "alice", token, -1)
    a.login("login: by a removed token", token)
    for number in (2, 3):
        a.expire(f"expire: token {number} at once", "alice", f"expire: token {number}", 0)
    time.sleep(0.05)  # a time of 0 is over in the next millisecond
    a.renew("renew: expired", "alice", "expire: token 2")
    a.renew("renew: expired, by a stranger", "carol", "expire: token 2")
    a.expire("expire: expired, later", "alice", "expire: token 2", 60_000)
    a.expire("expire: expired, by a stranger", "carol", "expire: token 2", 60_000)
    a.login("login: by an expired token", "expire: token 2")
    a.expire("expire: expired, now", "alice", "expire: token 2", -1)
    a.expire("expire: far in the past", "alice", "expire: token 4", -HUGE_MS)


def _descriptions(a: Asker) -> None:
    a.describe("describe: anonymous", "anonymous", None)
    a.describe("describe: by a token", "token create: version 3", None)
    for version in (1, 2, 3):
        a.describe(f"describe: own, version {version}", "alice", None, version)
    lists: dict[str, list[str] | None] = {
        "none": [],
        "all": None,
        "alice": [ALICE],
        "bob": ["User:bob"],
        "alice and nobody": [ALICE, "User:nobody"],
        "alice twice": [ALICE, ALICE],
        "maker": ["User:maker"],
        "prefix": ["User:prefix"],
        "admin": ["User:admin"],
        "a group": ["Group:alice"],
        "carol": ["User:carol"],
    }
    for user in ("alice", "bob", "carol", "maker", "seer", "reader", "prefix", "denied", "admin"):
        for name, owners in lists.items():
            a.describe(f"describe: {name}, by {user}", user, owners)
            tokens = a.notes[f"describe: {name}, by {user}"]
            tokens["tokens"] = sorted(each["token_id"] for each in tokens["tokens"])
