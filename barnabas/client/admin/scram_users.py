"""SCRAM credential requests (KIP-554)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias

from barnabas.client.admin.requests import AdminRequests, raise_first
from barnabas.client.errors import IllegalState
from barnabas.protocol.messages.scram_users import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    ScramUserName,
)

ScramMechanism: TypeAlias = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]

_MECHANISMS: Final[Mapping[str, tuple[int, str]]] = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}


class ScramUserAdmin(AdminRequests):
    """SCRAM credential requests."""

    async def describe_scram_users(
        self, users: Iterable[str] = (), *, timeout_ms: int | None = None
    ) -> dict[str, dict[str, int]]:
        """Returns iterations by user and mechanism, by default of all users. Raises KafkaError (RESOURCE_NOT_FOUND)."""
        names = [ScramUserName(name=each) for each in users]
        request = DescribeUserScramCredentialsRequest(users=names or None)
        response: DescribeUserScramCredentialsResponse = await self._retried(request, timeout_ms=timeout_ms)
        by_number = {number: name for name, (number, _) in _MECHANISMS.items()}
        found: dict[str, dict[str, int]] = {}
        results = sorted(response.results, key=lambda each: each.user)
        raise_first(results)
        for result in results:
            found[result.user] = {
                by_number[info.mechanism]: info.iterations
                for info in result.credential_infos
                if info.mechanism in by_number
            }
        return found

    async def set_scram_password(
        self,
        user: str,
        password: str,
        *,
        mechanism: ScramMechanism = "SCRAM-SHA-512",
        iterations: int = 4_096,
        timeout_ms: int | None = None,
    ) -> None:
        """Creates or replaces a user's credential for one mechanism. The password itself is not sent.

        Args:
            iterations: 4,096 to 16,384; each login computes as many hashes.

        Raises:
            IllegalState: the mechanism is unknown, or the password is empty.
            KafkaError: the number of iterations is rejected (UNACCEPTABLE_CREDENTIAL).
        """
        number, function = _mechanism(mechanism)
        if not password:
            raise IllegalState("the password is empty")
        if not 1 <= iterations <= 2**31 - 1:
            raise IllegalState(f"iterations={iterations}: 4096 to 16384 are possible")
        salt = hashlib.sha256(self._cluster.rng.uuid() + self._cluster.rng.uuid()).digest()
        salted = hashlib.pbkdf2_hmac(function, password.encode(), salt, min(iterations, _SALTED_MAX))
        request = AlterUserScramCredentialsRequest(
            upsertions=[
                ScramCredentialUpsertion(
                    name=user, mechanism=number, iterations=iterations, salt=salt, salted_password=salted
                )
            ]
        )
        await self._retried(request, lambda answer: answer.results[0], timeout_ms=timeout_ms)

    async def delete_scram_credential(
        self, user: str, mechanism: ScramMechanism, *, timeout_ms: int | None = None
    ) -> None:
        """Deletes a user's credential for one mechanism. Authenticated connections stay.

        Raises:
            IllegalState: the mechanism is unknown.
            KafkaError: the user has no such credential (RESOURCE_NOT_FOUND).
        """
        deletion = ScramCredentialDeletion(name=user, mechanism=_mechanism(mechanism)[0])
        request = AlterUserScramCredentialsRequest(deletions=[deletion])
        await self._retried(request, lambda answer: answer.results[0], timeout_ms=timeout_ms)


_SALTED_MAX: Final = 20_000  # iterations that are computed; brokers refuse more than 16,384


def _mechanism(name: str) -> tuple[int, str]:
    if name not in _MECHANISMS:
        raise IllegalState(f"mechanism {name!r} is not one of {', '.join(_MECHANISMS)}")
    return _MECHANISMS[name]
