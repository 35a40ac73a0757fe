"""The parser of JAAS texts: what Kafka's documentation shows, malformed texts, and secrets that stay hidden."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.protocol.jaas import JAAS_LENGTH_MAX, JaasError, parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def test_a_broker_of_the_documentation() -> None:
    jaas = parse_jaas(
        f"""{PLAIN} required
            username="admin" password="admin-secret"  // of connections between brokers
            /* the users */ user_admin="admin-secret"
            user_alice='ali"ce' ;"""
    )
    assert (jaas.module, jaas.class_name, jaas.flag) == (PLAIN, "PlainLoginModule", "required")
    assert dict(jaas.options) == {
        "username": "admin",
        "password": "admin-secret",
        "user_admin": "admin-secret",
        "user_alice": 'ali"ce',
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'"a\"b"', 'a"b'),
        (r'"a\\b"', "a\\b"),
        (r'"tab\tend"', "tab\tend"),
        (r'"\101\60"', "A0"),
        (r'"\q"', "q"),
        ("word-1_$", "word-1_$"),
        ("file:/tmp/x", "file:/tmp/x"),
        ('""', ""),
        ('"semi;colon=equal // no comment"', "semi;colon=equal // no comment"),
        ('"pässwörd"', "pässwörd"),
    ],
    ids=range(10),
)
def test_values(text: str, value: str) -> None:
    assert parse_jaas(f"M required k={text};").options == {"k": value}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "class of a login module is missing"),
        (";", "class of a login module is missing"),
        ("M", "control flag"),
        ("M maybe;", "no control flag"),
        ("planted-secret", "a control flag after the first word"),
        ("M required", "text ends at character 10"),
        ("M required =x;", "there is a '='"),
        ("M required key;", "has no '='"),
        ("M required key=;", "value of the option at character 11 is missing"),
        ('M required key="secret;', "has no end"),
        ("M required key='secret\n';", "has no end"),
        ("M required /* ;", "has no end"),
        ("M required; N required;", "exactly one"),
        ("M required a=b c secret;", "has no '='"),
        ("x" * (JAAS_LENGTH_MAX + 1), "allowed are"),
        ("M required " + "".join(f"k{n}=v " for n in range(20_001)) + ";", "more than 20000"),
    ],
    ids=range(16),
)
def test_malformed_texts_are_refused_without_their_values(text: str, says: str) -> None:
    with pytest.raises(JaasError, match=re.escape(says)) as caught:
        parse_jaas(text)
    assert "secret" not in str(caught.value)


def test_the_values_are_hidden() -> None:
    jaas = parse_jaas('M required user_alice="planted-secret";')
    assert repr(jaas) == "Jaas(M required user_alice=[hidden])"
    assert "planted-secret" not in f"{jaas} {jaas!r}"


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        parse_jaas(text)
    except JaasError:
        pass


@given(st.dictionaries(st.text("abc_-", min_size=1, max_size=8), st.text(max_size=20), max_size=5))
def test_quoted_values_come_back(options: dict[str, str]) -> None:
    def quoted(value: str) -> str:
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

    text = "M required " + " ".join(f"{name}={quoted(value)}" for name, value in options.items()) + ";"
    assert parse_jaas(text).options == options
