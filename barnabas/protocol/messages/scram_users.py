"""SCRAM credentials of users (KIP-554): DescribeUserScramCredentials 0, AlterUserScramCredentials 0."""

from __future__ import annotations

from barnabas.protocol.schema import Message, Struct, field
from barnabas.protocol.wire import Array, Bytes, Int8, Int16, Int32, String


class ScramUserName(Struct):
    """A user to describe."""

    name: str = field(String)


class DescribeUserScramCredentialsRequest(Message, api_key=50, versions=(0, 0), flexible_since=0):
    """Requests credentials of the named users, of all if the list is None or empty."""

    users: list[ScramUserName] | None = field(Array(ScramUserName), nullable_since=0)


class UserCredentialInfo(Struct):
    """One credential of a user, without its keys."""

    mechanism: int = field(Int8)  # 1: SCRAM-SHA-256, 2: SCRAM-SHA-512
    iterations: int = field(Int32)


class DescribedScramUser(Struct):
    """The credentials of one user."""

    user: str = field(String)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)
    credential_infos: list[UserCredentialInfo] = field(Array(UserCredentialInfo))


class DescribeUserScramCredentialsResponse(Message, api_key=50, versions=(0, 0), flexible_since=0):
    """The credentials of each user."""

    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)
    results: list[DescribedScramUser] = field(Array(DescribedScramUser))


class ScramCredentialDeletion(Struct):
    """A credential to delete."""

    name: str = field(String)
    mechanism: int = field(Int8)


class ScramCredentialUpsertion(Struct):
    """A credential to create or to replace. Its representation shows neither salt nor salted password."""

    name: str = field(String)
    mechanism: int = field(Int8)
    iterations: int = field(Int32)
    salt: bytes = field(Bytes)
    salted_password: bytes = field(Bytes)

    def __repr__(self) -> str:
        return f"ScramCredentialUpsertion(name={self.name!r}, mechanism={self.mechanism}, iterations={self.iterations})"


class AlterUserScramCredentialsRequest(Message, api_key=51, versions=(0, 0), flexible_since=0):
    """Changes credentials; each user separately."""

    deletions: list[ScramCredentialDeletion] = field(Array(ScramCredentialDeletion))
    upsertions: list[ScramCredentialUpsertion] = field(Array(ScramCredentialUpsertion))


class AlteredScramUser(Struct):
    """The result for one user."""

    user: str = field(String)
    error_code: int = field(Int16)
    error_message: str | None = field(String, nullable_since=0)


class AlterUserScramCredentialsResponse(Message, api_key=51, versions=(0, 0), flexible_since=0):
    """A result for each user of the request."""

    throttle_time_ms: int = field(Int32)
    results: list[AlteredScramUser] = field(Array(AlteredScramUser))
