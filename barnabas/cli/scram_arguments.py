"""Reads `--add-scram` of `storage format`, in the syntax of Kafka's kafka-storage:

    SCRAM-SHA-256=[name=alice,password=alice-secret]
    SCRAM-SHA-512=[name=alice,iterations=8192,salt="MWx2NHBkbnc0ZndxN25vdGN4bTB5Y3Rwcw==",saltedpassword="…"]

No error shows a password.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode
from collections.abc import Iterable
from typing import Final

from barnabas.broker.controller.core.scram_users import HASHES, ITERATIONS_MAX, ITERATIONS_MIN, scram_record
from barnabas.broker.image.records import UserScramCredentialRecord
from barnabas.ports import Rng

_MECHANISMS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_EXAMPLE: Final = "write SCRAM-SHA-256=[name=alice,password=SECRET]"
_KEYS: Final = ("name", "password", "iterations", "salt", "saltedpassword")


def scram_records(arguments: Iterable[str], rng: Rng) -> list[UserScramCredentialRecord]:
    """Returns a record for each argument, in their order.

    Raises ValueError: an argument is invalid; the text says what is right and shows no password.
    """
    found = []
    seen: set[tuple[str, int]] = set()
    for number, argument in enumerate(arguments, start=1):
        try:
            record = _record(argument, rng)
        except ValueError as error:
            raise ValueError(f"--add-scram, number {number}: {error}") from None
        if (record.name, record.mechanism) in seen:
            raise ValueError(f"--add-scram, number {number}: user {record.name} has this mechanism already")
        seen.add((record.name, record.mechanism))
        found.append(record)
    return found


def _record(argument: str, rng: Rng) -> UserScramCredentialRecord:
    mechanism, equals, rest = argument.strip().partition("=")
    number = _MECHANISMS.get(mechanism.strip())
    if not equals or number is None:
        raise ValueError(f"it begins with no mechanism ({', '.join(_MECHANISMS)}): {_EXAMPLE}")
    rest = rest.strip()
    if not (rest.startswith("[") and rest.endswith("]")):
        raise ValueError(f"the brackets are missing: {_EXAMPLE}")
    values = _values(rest[1:-1])
    name = values.get("name", "")
    if not name:
        raise ValueError(f"the name is missing: {_EXAMPLE}")
    iterations = _iterations(values.get("iterations"))
    password, salted_text = values.get("password"), values.get("saltedpassword")
    if (password is None) == (salted_text is None):
        raise ValueError("give one of password and saltedpassword")
    if salted_text is not None and "salt" not in values:
        raise ValueError("saltedpassword needs its salt")
    salt = _bytes("salt", values["salt"]) if "salt" in values else hashlib.sha256(rng.uuid() + rng.uuid()).digest()
    if salted_text is not None:
        salted = _bytes("saltedpassword", salted_text)
    elif password:
        salted = hashlib.pbkdf2_hmac(HASHES[number], password.encode(), salt, iterations)
    else:
        raise ValueError("the password is empty")
    if not salted:
        raise ValueError("saltedpassword is empty")
    return scram_record(name, number, iterations, salt, salted)


def _values(text: str) -> dict[str, str]:
    """The values by key. Kafka divides at each comma, so no value holds one."""
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        key, value = key.strip(), value.strip()
        if not equals or key not in _KEYS:
            raise ValueError(f"a part between commas is none of {', '.join(_KEYS)} with =; a value cannot hold a comma")
        if key in found:
            raise ValueError(f"{key} is given twice")
        quoted = len(value) >= 2 and value.startswith('"') and value.endswith('"')
        found[key] = value[1:-1] if quoted else value
    return found


def _iterations(text: str | None) -> int:
    if text is None:
        return ITERATIONS_MIN
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and ITERATIONS_MIN <= int(text) <= ITERATIONS_MAX):
        raise ValueError(f"iterations: {ITERATIONS_MIN} to {ITERATIONS_MAX} are possible")
    return int(text)


def _bytes(key: str, text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise ValueError(f"{key} is not base64") from None
