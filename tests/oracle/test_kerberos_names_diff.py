"""sasl.kerberos.principal.to.local.rules: our table holds the answers of Kafka's KerberosShortNamer."""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path

from tests.support.oracle import real_kafka
from tests.support.security.kerberos_rules import RULES

SOURCE = Path(real_kafka.__file__).with_name("KerberosNames.java")


def test_the_table_is_kafkas(kafka: str) -> None:
    lines = [f"R.TEST\t{rules}\t{principal}" for rules, principal, _ in RULES]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafka-up"
    jars = Path(os.environ.get("KAFKA_UP_CACHE") or cache) / "4.3.1"
    answered = subprocess.run(
        ["java", "-Dfile.encoding=UTF-8", "-cp", f"{jars}/*", str(SOURCE)],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    answers = [base64.b64decode(line).decode() for line in answered.stdout.split()]
    assert answers == ["!" if each is None else f"={each}" for _, _, each in RULES]
