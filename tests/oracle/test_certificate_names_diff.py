"""Subjects of certificates and ssl.principal.mapping.rules: our tables hold the answers of Java and of Kafka's SslPrincipalMapper."""

from __future__ import annotations

import base64
from pathlib import Path

from tests.support.oracle import real_kafka
from tests.support.oracle.tools import tool
from tests.support.security.names import RULES, SUBJECT, SUBJECTS, certificate

SOURCE = Path(real_kafka.__file__).with_name("CertificateNames.java")


def test_the_tables_are_kafkas() -> None:
    lines = [f"C\t{base64.b64encode(certificate(parts)).decode()}" for parts, _ in SUBJECTS]
    lines += [f"R\t{rules}\t{SUBJECT}" for rules, _ in RULES]
    answered = tool(str(SOURCE), stdin="\n".join(lines))
    answers = [base64.b64decode(line).decode() for line in answered.split()]
    expected = [*(text for _, text in SUBJECTS), *(name for _, name in RULES)]
    assert answers == ["!" if each is None else f"={each}" for each in expected]
