"""Names of Kerberos principals: the rules are Kafka's (tests/oracle/test_golden_answers.py confirms the table)."""

from __future__ import annotations

import pytest

from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.config.kerberos_names import KerberosNameError, check_local_rules, local_names
from barnabas.errors import BrokerError
from tests.support.security.kerberos_rules import RULES


@pytest.mark.parametrize(("rules", "principal", "expected"), RULES, ids=range(len(RULES)))
def test_rules_map_as_kafka_maps(rules: str, principal: str, expected: str | None) -> None:
    if expected is not None:
        assert local_names(rules.split(";"), "R.TEST")(principal) == expected
        return
    with pytest.raises((ValueError, KerberosNameError)):
        local_names(rules.split(";"), "R.TEST")(principal)


def test_a_long_principal_is_refused() -> None:
    with pytest.raises(KerberosNameError, match="allowed are 1024"):
        local_names(["DEFAULT"], "R")("a" * 2_000 + "@R")


def test_without_a_default_realm_default_applies_to_nobody() -> None:
    with pytest.raises(KerberosNameError):
        local_names(["DEFAULT"], "")("alice@R")


@pytest.mark.parametrize("rule", ["nonsense", "RULE:[1:$3]", "RULE:[1:$1]s/(/x/", "RULE:[1:$1](*)"])
def test_malformed_rules_stop_the_start(rule: str) -> None:
    assert check_local_rules((rule,)) is not None
    with pytest.raises(BrokerError, match=r"principal\.to\.local\.rules"):
        BrokerConfig({"sasl.kerberos.principal.to.local.rules": rule})
