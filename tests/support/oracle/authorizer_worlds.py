"""Generated worlds of ACLs and questions, and the answers of Kafka's authorizer to them.

`worlds()` is deterministic. Kafka's answers are in tests/golden/security/authorizer.json; the oracle test asks Kafka again and compares.
To write the file anew: python -m tests.support.oracle.authorizer_worlds
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from barnabas.broker.image.image import AclImage
from barnabas.protocol.acls import AclOperation, AclPermission, AclResourceType, PatternType
from tests.support.oracle.real_kafka import TOOL_SECONDS_MAX

GOLDEN = Path(__file__).parents[2] / "golden" / "security" / "authorizer.json"
SOURCE = Path(__file__).with_name("AuthorizerAnswers.java")
NAMES = ("f", "fo", "foo", "fooa", "foob", "foobar", "foobaz", "bar", "b", "x-1", "hardcode")
HOSTS = ("127.0.0.1", "10.1.2.3", "0:0:0:0:0:0:0:1")
USERS = ("alice", "bob", "carol", "admin")
TYPES = tuple(each for each in AclResourceType if each > AclResourceType.ANY)
OPERATIONS = tuple(each for each in AclOperation if each > AclOperation.ALL)
WORLDS, ACLS, QUESTIONS, TYPE_QUESTIONS = 16, 24, 150, 40


class Question(NamedTuple):
    user: str
    host: str
    operation: AclOperation
    resource_type: AclResourceType
    name: str | None  # None: any resource of the type

    @property
    def line(self) -> str:
        start = [self.user, self.host, str(int(self.operation)), str(int(self.resource_type))]
        return "\t".join(["any", *start] if self.name is None else ["ask", *start, self.name])


class World(NamedTuple):
    super_users: str
    allow_if_no_acl: bool
    acls: list[AclImage]
    questions: list[Question]

    def lines(self) -> Iterator[str]:
        """The commands for AuthorizerAnswers."""
        yield f"world\t{self.super_users}\t{str(self.allow_if_no_acl).lower()}"
        for acl in self.acls:
            yield "\t".join(str(int(each) if isinstance(each, int) else each) for each in ("acl", *acl))
        for question in self.questions:
            yield question.line


def worlds() -> list[World]:
    """The same worlds at each call."""
    rng = random.Random(15)
    return [_world(rng, number) for number in range(WORLDS)]


def _world(rng: random.Random, number: int) -> World:
    # A world has few types and operations, so that its ACLs meet its questions.
    types = TYPES if number < 2 else rng.sample(TYPES, 2)
    operations = OPERATIONS if number < 2 else rng.sample(OPERATIONS, 4)
    acls: dict[AclImage, None] = {}
    while len(acls) < (ACLS if number % 4 else 4):
        prefixed = rng.random() < 0.4
        name = "*" if not prefixed and rng.random() < 0.15 else rng.choice(NAMES)
        acl = AclImage(
            rng.choice(types),
            name,
            PatternType.PREFIXED if prefixed else PatternType.LITERAL,
            "User:*" if rng.random() < 0.3 else f"User:{rng.choice(USERS)}",
            "*" if rng.random() < 0.6 else rng.choice(HOSTS),
            AclOperation.ALL if rng.random() < 0.1 else rng.choice(operations),
            AclPermission.DENY if rng.random() < 0.3 else AclPermission.ALLOW,
        )
        acls[acl] = None
    # Half of the questions are about operations that others imply.
    asked = (*operations, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    questions = [
        Question(rng.choice(USERS), rng.choice(HOSTS), rng.choice(asked), rng.choice(types), rng.choice(NAMES))
        for _ in range(QUESTIONS)
    ]
    questions += [
        Question(rng.choice(USERS), rng.choice(HOSTS), rng.choice(asked), rng.choice(types), None)
        for _ in range(TYPE_QUESTIONS)
    ]
    return World("User:admin; User:root" if number % 2 else "", number % 3 == 0, list(acls), questions)


def fingerprint(all_worlds: Sequence[World]) -> str:
    """Names the questions that an answer file belongs to."""
    text = "\n".join(line for world in all_worlds for line in world.lines())
    return hashlib.sha256(text.encode()).hexdigest()


def kafka_answers() -> dict[str, Any]:
    """Asks Kafka's StandardAuthorizer in a process of its own. Takes some 3 s."""
    cache = (
        os.environ.get("KAFKA_UP_CACHE")
        or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafka-up"
    )
    libraries = Path(cache) / "4.3.1"
    asked = worlds()
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "log4j2.properties"
        settings.write_text(
            "rootLogger.level=off\nlogger.a.name=kafka.authorizer.logger\nlogger.a.level=debug\nlogger.a.appenderRef.c.ref=C\n"
            "appender.c.type=Console\nappender.c.name=C\nappender.c.layout.type=PatternLayout\n"
            "appender.c.layout.pattern=audit %p %m%n\n"
        )
        command = [
            "java",
            "-XX:TieredStopAtLevel=1",
            "-cp",
            f"{libraries}/*",
            f"-Dlog4j2.configurationFile={settings}",
            str(SOURCE),
        ]
        lines = "\n".join(line for world in asked for line in world.lines()) + "\n"
        done = subprocess.run(
            command, input=lines, capture_output=True, text=True, timeout=TOOL_SECONDS_MAX, check=True
        )
    output = done.stdout.splitlines()
    answers = "".join(line.removeprefix("answer ") for line in output if line.startswith("answer "))
    audit = [line.removeprefix("audit ") for line in output if line.startswith("audit ")]
    return {"questions": fingerprint(asked), "answers": answers, **audit_part(audit)}


def audit_part(lines: Sequence[str]) -> dict[str, Any]:
    """The part of the file that is about the audit log: some lines, and the hash of all lines of questions with a name."""
    asked = [line for line in lines if "resourceRefCount = 2" in line]
    return {"audit": asked[::60], "audit_sha256": hashlib.sha256("\n".join(asked).encode()).hexdigest()}


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(kafka_answers(), indent=1) + "\n")
