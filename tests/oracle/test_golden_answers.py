"""Golden answers and tables are those of Kafka today; tests without Java compare ours with them."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.oracle import authorizer_worlds, permission_cases, real_kafka, token_script, tokens_in_kafka
from tests.support.oracle.permissions_in_kafka import kafka_outlines
from tests.support.oracle.real_kafka import needs_java
from tests.support.oracle.tools import tool
from tests.support.security import kerberos_rules, names

pytestmark = pytest.mark.oracle


def test_the_authorizer(kafka: str) -> None:
    """Of Kafka's StandardAuthorizer; `kafka` is there for the jars."""
    assert authorizer_worlds.kafka_answers() == json.loads(authorizer_worlds.GOLDEN.read_text())


@pytest.mark.parametrize(
    ("kafka_answers", "golden"),
    [(kafka_outlines, permission_cases.GOLDEN), (tokens_in_kafka.kafka_answers, token_script.GOLDEN)],
    ids=["permissions", "tokens"],
)
def test_answers_are_those_of_kafka(kafka_answers: Callable[[], dict[str, Any]], golden: Path) -> None:
    needs_java()
    found = kafka_answers()
    written = json.loads(golden.read_text())
    different = {name: (written.get(name), answer) for name, answer in found.items() if written.get(name) != answer}
    assert different == {}
    assert list(found) == list(written)


def java(program: str, lines: list[str]) -> list[str]:
    """The answers of a program to lines; "!" is a refusal."""
    source = Path(real_kafka.__file__).with_name(f"{program}.java")
    utf_8 = {"JAVA_TOOL_OPTIONS": "-Dfile.encoding=UTF-8"}
    answered = tool(str(source), stdin="\n".join(lines), environment=utf_8)
    return [base64.b64decode(line).decode() for line in answered.split()]


def test_names_of_certificates() -> None:
    """Subjects by Java, ssl.principal.mapping.rules by Kafka's SslPrincipalMapper."""
    lines = [f"C\t{base64.b64encode(names.certificate(parts)).decode()}" for parts, _ in names.SUBJECTS]
    lines += [f"R\t{rules}\t{names.SUBJECT}" for rules, _ in names.RULES]
    expected = [*(text for _, text in names.SUBJECTS), *(name for _, name in names.RULES)]
    assert java("CertificateNames", lines) == ["!" if each is None else f"={each}" for each in expected]


def test_names_of_kerberos_principals() -> None:
    """sasl.kerberos.principal.to.local.rules by Kafka's KerberosShortNamer."""
    lines = [f"R.TEST\t{rules}\t{principal}" for rules, principal, _ in kerberos_rules.RULES]
    expected = ["!" if each is None else f"={each}" for _, _, each in kerberos_rules.RULES]
    assert java("KerberosNames", lines) == expected
