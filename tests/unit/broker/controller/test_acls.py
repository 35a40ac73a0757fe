"""ACLs and SCRAM users: which changes the controller takes, and what it writes. tests/oracle/test_acls_diff.py has Kafka's answers."""

from __future__ import annotations

import hashlib
from base64 import b64decode
from typing import Any

import pytest

from barnabas.broker.controller.core.acls import ACLS_OF_A_REQUEST_MAX, create_acls, delete_acls
from barnabas.broker.controller.core.scram_users import alter_scram_users
from barnabas.broker.image.image import AclImage, MetadataImage
from barnabas.errors import BrokerError, ErrorCode
from barnabas.protocol.messages.acls import CreateAclsRequest, DeleteAclsRequest
from barnabas.protocol.messages.scram_users import AlterUserScramCredentialsRequest
from tests.support.broker.metadata_images import cluster, replayed, view
from tests.support.oracle.acl_requests import acl, deletion, matching, upsertion


def created(image: MetadataImage, *acls: Any) -> MetadataImage:
    decision = create_acls(view(image), CreateAclsRequest(creations=list(acls)))
    assert {each.error_code for each in decision.answer.results} == {0}
    return replayed(image, decision.records)


def test_acls_are_created_once_and_deleted() -> None:
    image = created(cluster((1,)), acl("a"), acl("a"), acl("b", pattern=4))
    assert list(image.acls.values()) == [
        AclImage(2, "a", 3, "User:a", "*", 3, 3),
        AclImage(2, "b", 4, "User:a", "*", 3, 3),
    ]
    assert created(image, acl("a")).acls == image.acls
    request = DeleteAclsRequest(filters=[matching("a"), matching("a", kind=2), matching("none")])
    decision = delete_acls(view(image), request)
    assert [len(each.matching_acls) for each in decision.answer.filter_results] == [1, 1, 0]
    assert [each.resource_name for each in replayed(image, decision.records).acls.values()] == ["b"]


def test_an_invalid_acl_leaves_the_others() -> None:
    decision = create_acls(view(cluster((1,))), CreateAclsRequest(creations=[acl("a"), acl(""), acl("b")]))
    assert [each.error_code for each in decision.answer.results] == [0, ErrorCode.INVALID_REQUEST, 0]
    assert len(decision.records) == 2


def test_one_request_creates_and_deletes_a_limited_number() -> None:
    many = [acl(str(number)) for number in range(ACLS_OF_A_REQUEST_MAX)]
    image = created(cluster((1,)), *many)
    with pytest.raises(BrokerError) as refused:
        create_acls(view(cluster((1,))), CreateAclsRequest(creations=[*many, acl("more")]))
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    larger = MetadataImage(acls={**image.acls, b"more": AclImage(2, "more", 3, "User:a", "*", 3, 3)})
    with pytest.raises(BrokerError, match="Cannot remove more than 10000 acls"):
        delete_acls(view(larger), DeleteAclsRequest(filters=[matching("more"), matching()]))
    twice = DeleteAclsRequest(filters=[matching(), matching(kind=2)])
    assert len(delete_acls(view(image), twice).records) == ACLS_OF_A_REQUEST_MAX
    with pytest.raises(BrokerError, match="Cannot remove"):
        delete_acls(view(image), DeleteAclsRequest(filters=[matching()] * 11))


def test_the_keys_of_a_credential_are_those_of_rfc_5802() -> None:
    salt = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")  # of the example in RFC 7677, whose password is "pencil"
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4_096)
    request = AlterUserScramCredentialsRequest(upsertions=[upsertion("u", 1, 4_096, salt, salted)])
    decision = alter_scram_users(view(cluster((1,))), request)
    image = replayed(cluster((1,)), decision.records)
    found = image.scram_credentials[1, "u"]
    assert found.stored_key == b64decode("WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=")
    assert found.server_key == b64decode("wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=")
    assert (found.salt, found.iterations) == (salt, 4_096)
    request = AlterUserScramCredentialsRequest(deletions=[deletion("u", 1)])
    assert replayed(image, alter_scram_users(view(image), request).records).scram_credentials == {}


def test_a_request_shows_no_salted_password() -> None:
    shown = repr(AlterUserScramCredentialsRequest(upsertions=[upsertion("u", salted=b"planted-secret")]))
    assert "planted" not in shown
    assert "iterations=4096" in shown
    records = alter_scram_users(
        view(cluster((1,))), AlterUserScramCredentialsRequest(upsertions=[upsertion("u")])
    ).records
    assert "key" not in repr(records)


def test_an_error_about_a_long_name_fits_into_its_answer() -> None:
    decision = create_acls(view(cluster((1,))), CreateAclsRequest(creations=[acl("a", principal="é" * 32_000)]))
    (result,) = decision.answer.results
    text = result.error_message or ""
    assert text.startswith("Could not parse principal from `éé")
    assert len(text.encode()) < 2_500
