"""sasl.kerberos.principal.to.local.rules: our table holds the answers of Kafka's KerberosShortNamer."""

from __future__ import annotations

import base64
from pathlib import Path

from tests.support.oracle import real_kafka
from tests.support.oracle.tools import tool
from tests.support.security.kerberos_rules import RULES

SOURCE = Path(real_kafka.__file__).with_name("KerberosNames.java")


def test_the_table_is_kafkas() -> None:
    lines = [f"R.TEST\t{rules}\t{principal}" for rules, principal, _ in RULES]
    answered = tool(str(SOURCE), stdin="\n".join(lines), environment={"JAVA_TOOL_OPTIONS": "-Dfile.encoding=UTF-8"})
    answers = [base64.b64decode(line).decode() for line in answered.split()]
    assert answers == ["!" if each is None else f"={each}" for _, _, each in RULES]
