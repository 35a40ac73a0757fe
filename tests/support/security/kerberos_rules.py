"""Kerberos principals, rules and the names that Kafka makes of them (tests/oracle/test_golden_answers.py confirms them)."""

from __future__ import annotations

from typing import Final

Case = tuple[str, str, str | None]  # rules separated by ';', a principal, its name; None: Kafka refuses one of them

ALICE: Final = "alice@R.TEST"
HOST: Final = "kafka/host.example@R.TEST"

# The default realm is R.TEST.
RULES: Final[list[Case]] = [
    ("DEFAULT", ALICE, "alice"),
    ("DEFAULT", HOST, "kafka"),
    ("DEFAULT", "alice@OTHER.TEST", None),
    ("DEFAULT", "alice", "alice"),
    ("DEFAULT", "a/b", "a/b"),
    ("DEFAULT", "a/b/c@R.TEST", None),
    ("DEFAULT", "a@b@R.TEST", None),
    ("DEFAULT", "@R.TEST", ""),
    ("DEFAULT", "alice@", None),
    ("DEFAULT", "Älice@R.TEST", "Älice"),
    ("RULE:[1:$1]", ALICE, "alice"),
    ("RULE:[1:$1]", "alice@OTHER.TEST", "alice"),
    ("RULE:[1:$1]", HOST, None),
    ("RULE:[2:$1]", HOST, "kafka"),
    ("RULE:[2:$2]", HOST, "host.example"),
    ("RULE:[2:$2-$1-$0]", HOST, "host.example-kafka-R.TEST"),
    ("RULE:[1:$1@$0]", ALICE, None),
    ("RULE:[1:$1@$0]s/@.*//", ALICE, "alice"),
    ("RULE:[1:$1@$0](.*@OTHER.TEST)s/@.*//;DEFAULT", "bob@OTHER.TEST", "bob"),
    ("RULE:[1:$1@$0](.*@OTHER.TEST)s/@.*//;DEFAULT", ALICE, "alice"),
    ("RULE:[1:$1@$0](.*@OTHER)s/@.*//", "bob@OTHER.TEST", None),
    ("RULE:[1:$1]s/a/A/", "aaa@R.TEST", "Aaa"),
    ("RULE:[1:$1]s/a/A/g", "aaa@R.TEST", "AAA"),
    ("RULE:[1:$1]s/a/A/g/L", "aBa@R.TEST", "aba"),
    ("RULE:[1:$1]/L", "ALICE@R.TEST", "alice"),
    ("RULE:[1:$1]L", "ALICE@R.TEST", "alice"),
    ("RULE:[1:$1]/U", ALICE, "ALICE"),
    ("RULE:[1:$1]U", ALICE, "ALICE"),
    ("RULE:[1:$1]s/a/b//L", "Aa@R.TEST", "ab"),
    ("RULE:[1:$1]s/(.)(.*)/$2$1/", ALICE, "licea"),
    ("RULE:[1:$1]s/(?<first>.)(.*)/${first}/", ALICE, "a"),
    (r"RULE:[1:$1]s/l/\$1/", ALICE, "a$1ice"),
    ("RULE:[1:$1]s/x*/-/g", "ab@R.TEST", "-a-b-"),
    ("RULE:[1:$1]s/^alice$/admin/", ALICE, "admin"),
    ("RULE:[1:$1](bob)s/bob/x/;RULE:[1:$1](alice)s/alice/y/;DEFAULT", ALICE, "y"),
    ("RULE:[1:$1](bob)", ALICE, None),
    ("RULE:[1:fixed]", ALICE, "fixed"),
    ("RULE:[1:]", ALICE, ""),
    ("RULE:[1:a/b]", ALICE, None),
    ("RULE:[1:a/b];DEFAULT", ALICE, None),
    ("RULE:[2:$1/$2]s/\\./_/g", HOST, None),
    ("RULE:[2:$1.$2]s/\\./_/g", HOST, "kafka_host_example"),
    ("RULE:[1:$1]s/a/b/gL", "aA@R.TEST", "ba"),
    ("DEFAULT/L", "ALICE@R.TEST", None),
    ("default", ALICE, None),
    ("RULE:[1:$1", ALICE, None),
    ("RULE:[:$1]", ALICE, None),
    ("RULE:[1:$1]s/a/b", ALICE, None),
    ("RULE:[1:$1]/X", ALICE, None),
    ("RULE:[1:$1](a", ALICE, None),
    ("RULE:[1:$2]", ALICE, None),
    ("RULE:[1:$]", ALICE, None),
    ("RULE:[1:$1]s/(/x/", ALICE, None),
    ("RULE:[1:$1]s/a/$1/", ALICE, None),
    ("RULE:[1:$1] ", ALICE, None),
    ("RULE:[3:$1]", ALICE, None),
    ("", ALICE, None),
]
