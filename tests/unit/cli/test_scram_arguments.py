"""`storage format --add-scram`: the syntax of Kafka's kafka-storage."""

from __future__ import annotations

import hashlib
from base64 import b64encode

import pytest

from barnabas.broker.controller.core.scram_users import scram_record
from barnabas.cli.scram_arguments import scram_records
from tests.support.rng import SeededRng

SALT = b"0123456789abcdef"
SALTED = hashlib.pbkdf2_hmac("sha256", b"secret", SALT, 8_192)


def quoted(data: bytes) -> str:
    return f'"{b64encode(data).decode()}"'


def test_a_password_and_its_salted_hash_give_the_same_keys() -> None:
    first, second = scram_records(
        [
            f"SCRAM-SHA-256=[name=alice,iterations=8192,salt={quoted(SALT)},password=secret]",
            f' SCRAM-SHA-256 = [ name="bob", iterations=8192, salt={quoted(SALT)}, saltedpassword={quoted(SALTED)} ] ',
        ],
        SeededRng(1),
    )
    assert first == scram_record("alice", 1, 8_192, SALT, SALTED)
    assert (second.stored_key, second.server_key) == (first.stored_key, first.server_key)
    assert second.name == "bob"


def test_without_a_salt_each_user_gets_one() -> None:
    first, second = scram_records([f"SCRAM-SHA-512=[name={name},password=x]" for name in "ab"], SeededRng(1))
    assert first.salt != second.salt
    assert (first.iterations, len(first.salt), len(first.stored_key)) == (4_096, 32, 64)


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("", "begins with no mechanism"),
        ("PLAIN=[name=a,password=planted]", "begins with no mechanism"),
        ("SCRAM-SHA-256=name=a,password=planted", "brackets are missing"),
        ("SCRAM-SHA-256=[password=planted]", "the name is missing"),
        ("SCRAM-SHA-256=[name=,password=planted]", "the name is missing"),
        ("SCRAM-SHA-256=[name=a]", "give one of password and saltedpassword"),
        (f"SCRAM-SHA-256=[name=a,password=planted,saltedpassword={quoted(SALTED)}]", "give one of"),
        (f"SCRAM-SHA-256=[name=a,saltedpassword={quoted(SALTED)}]", "needs its salt"),
        ("SCRAM-SHA-256=[name=a,salt=!,password=planted]", "salt is not base64"),
        ("SCRAM-SHA-256=[name=a,password=]", "the password is empty"),
        ("SCRAM-SHA-256=[name=a,password=plan,ted]", "cannot hold a comma"),
        ("SCRAM-SHA-256=[name=a,password=planted,iterations=4095]", "4096 to 16384"),
        ("SCRAM-SHA-256=[name=a,password=planted,iterations=x]", "4096 to 16384"),
        ("SCRAM-SHA-256=[name=a,name=b,password=planted]", "name is given twice"),
    ],
)
def test_wrong_arguments_are_refused_without_their_password(argument: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        scram_records([argument], SeededRng(1))
    assert "planted" not in str(refused.value)


def test_a_user_has_one_credential_of_a_mechanism() -> None:
    with pytest.raises(ValueError, match="number 2: user a has this mechanism already"):
        scram_records(["SCRAM-SHA-256=[name=a,password=x]", "SCRAM-SHA-256=[name=a,password=y]"], SeededRng(1))
