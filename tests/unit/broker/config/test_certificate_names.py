"""Principals of certificates: the names and the mapping are Kafka's (tests/oracle/test_golden_answers.py confirms them)."""

from __future__ import annotations

import random

import pytest

from barnabas.broker.config.certificate_names import CertificateNameError, mapping_rules, subject_name
from tests.support.security.names import RULES, SUBJECT, SUBJECTS, Part, certificate


@pytest.mark.parametrize(("parts", "expected"), SUBJECTS, ids=range(len(SUBJECTS)))
def test_the_subject_is_printed_as_java_prints_it(parts: list[list[Part]], expected: str) -> None:
    assert subject_name(certificate(parts)) == expected


@pytest.mark.parametrize(("rules", "expected"), RULES, ids=range(len(RULES)))
def test_rules_map_as_kafka_maps(rules: str, expected: str | None) -> None:
    if expected is not None:
        assert mapping_rules(rules)(SUBJECT) == expected
        return
    with pytest.raises((ValueError, CertificateNameError)):
        mapping_rules(rules)(SUBJECT)


def test_damaged_certificates_have_no_name() -> None:
    """Of OpenSSL's verified certificates none is damaged; a bug must still end as an error of this connection."""
    rng = random.Random(5)
    whole = certificate(SUBJECTS[0][0])
    for _ in range(3_000):
        data = bytearray(whole[: rng.randrange(len(whole))] if rng.random() < 0.3 else whole)
        for _ in range(rng.randrange(4)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            assert len(subject_name(bytes(data))) <= 4_096
        except CertificateNameError:
            pass


def test_a_long_subject_is_refused() -> None:
    parts = [[(kind, "x" * 64)] for kind, _ in [SUBJECTS[0][0][1][0]] * 70]
    with pytest.raises(CertificateNameError, match="allowed are 4096"):
        subject_name(certificate(parts))
