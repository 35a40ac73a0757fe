"""Messages with secrets show none of them."""

from __future__ import annotations

import pytest

from barnabas.broker.image.records import ConfigRecord
from barnabas.protocol.messages.admin import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsRequestConfig,
    AlterConfigsRequestResource,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from barnabas.protocol.messages.authentication import SaslAuthenticateRequest, SaslAuthenticateResponse
from barnabas.protocol.messages.delegation_tokens import (
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from barnabas.protocol.messages.scram_users import AlterUserScramCredentialsRequest, ScramCredentialUpsertion
from barnabas.protocol.schema import Message

SECRET = b"planted-secret"


@pytest.mark.parametrize(
    "message",
    [
        SaslAuthenticateRequest(auth_bytes=SECRET),
        SaslAuthenticateResponse(auth_bytes=SECRET),
        CreateDelegationTokenResponse(hmac=SECRET),
        RenewDelegationTokenRequest(hmac=SECRET),
        ExpireDelegationTokenRequest(hmac=SECRET),
        DescribeDelegationTokenResponse(tokens=[DescribedDelegationToken(hmac=SECRET, token_id="id")]),
        IncrementalAlterConfigsRequest(
            resources=[AlterConfigsResource(configs=[AlterableConfig(name="ssl.key.password", value="planted")])]
        ),
        AlterConfigsRequest(
            resources=[
                AlterConfigsRequestResource(
                    configs=[AlterConfigsRequestConfig(name="ssl.key.password", value="planted")]
                )
            ]
        ),
        ConfigRecord(resource_type=4, resource_name="1", name="ssl.key.password", value="planted"),
        AlterUserScramCredentialsRequest(upsertions=[ScramCredentialUpsertion(salt=SECRET, salted_password=SECRET)]),
    ],
    ids=lambda message: type(message).__name__,
)
def test_the_representation_of_a_message_shows_no_secret(message: Message) -> None:
    assert "planted" not in repr(message)
    assert type(message).__name__ in repr(message)
