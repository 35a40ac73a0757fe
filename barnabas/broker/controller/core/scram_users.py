"""Decisions on SCRAM credentials: AlterUserScramCredentials (KIP-554, KIP-900, RFC 5802); errors of Kafka's ScramControlManager."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

from barnabas.broker.controller.core.decision import ClusterView, LongDecision, MetadataDecision
from barnabas.broker.image.records import MetadataRecord, RemoveUserScramCredentialRecord, UserScramCredentialRecord
from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import REFUSAL_TEXTS_MAX
from barnabas.protocol.messages.scram_users import (
    AlteredScramUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from barnabas.work import Work

ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
USERS_OF_A_REQUEST_MAX: Final = 10_000
HASHES: Final[Mapping[int, str]] = {1: "sha256", 2: "sha512"}  # SCRAM-SHA-256 and SCRAM-SHA-512, by mechanism

TWICE: Final = "A user credential cannot be altered twice in the same request"
# in place of an answered error: freeing very many would take a whole turn
ANSWERED: Final = BrokerError(ErrorCode.NONE)


@LongDecision[AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse]
def alter_scram_users(view: ClusterView, request: AlterUserScramCredentialsRequest) -> Work:
    """Each user separately, at most one change of a credential of each."""
    records: dict[str, MetadataRecord] = {}
    errors: dict[str, BrokerError] = {}
    changes: Iterator[ScramCredentialDeletion | ScramCredentialUpsertion]
    changes = chain(request.deletions, request.upsertions)
    for change in changes:
        yield 1
        name = change.name
        if name in errors:
            continue
        if records.pop(name, None) is not None:
            errors[name] = BrokerError(ErrorCode.DUPLICATE_RESOURCE, TWICE)
            continue
        try:
            _check(name, change.mechanism)
            records[name] = (
                _upserted(change) if isinstance(change, ScramCredentialUpsertion) else _removed(view, change)
            )
        except BrokerError as error:
            errors[name] = error.with_traceback(None)  # its frames hold `errors`: a cycle
        if len(records) > USERS_OF_A_REQUEST_MAX and isinstance(change, ScramCredentialUpsertion):
            raise BrokerError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
    results = []
    for texts, name in enumerate(errors, start=1):
        yield 1
        refused, errors[name] = errors[name], ANSWERED
        shown = refused.code != ErrorCode.UNKNOWN_SERVER_ERROR and texts <= REFUSAL_TEXTS_MAX
        results.append(
            AlteredScramUser(user=name, error_code=refused.code, error_message=refused.message if shown else None)
        )
    for name in records:
        yield 1
        results.append(AlteredScramUser(user=name, error_message=None))
    return MetadataDecision(AlterUserScramCredentialsResponse(results=results), list(records.values()))


def _check(name: str, mechanism: int) -> None:
    if not name:
        raise BrokerError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if mechanism not in HASHES:
        raise BrokerError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")


def _removed(view: ClusterView, deletion: ScramCredentialDeletion) -> MetadataRecord:
    if (deletion.mechanism, deletion.name) not in view.image.scram_credentials:
        text = "Attempt to delete a user credential that does not exist"
        raise BrokerError(ErrorCode.RESOURCE_NOT_FOUND, text)
    return RemoveUserScramCredentialRecord(name=deletion.name, mechanism=deletion.mechanism)


def _upserted(upsertion: ScramCredentialUpsertion) -> MetadataRecord:
    if upsertion.iterations < ITERATIONS_MIN:
        raise BrokerError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if upsertion.iterations > ITERATIONS_MAX:
        raise BrokerError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not upsertion.salted_password:
        raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR)  # Kafka cannot make a key of no bytes
    return scram_record(
        upsertion.name, upsertion.mechanism, upsertion.iterations, upsertion.salt, upsertion.salted_password
    )


def scram_record(
    name: str, mechanism: int, iterations: int, salt: bytes, salted_password: bytes
) -> UserScramCredentialRecord:
    """Stores the two keys derived from the salted password. RFC 5802: StoredKey is the hash of HMAC(SaltedPassword, "Client Key")."""
    function = HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", function)
    return UserScramCredentialRecord(
        name=name,
        mechanism=mechanism,
        salt=bytes(salt),
        stored_key=hashlib.new(function, client_key).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", function),
        iterations=iterations,
    )
