"""Handles DescribeUserScramCredentials (50) and AlterUserScramCredentials (51), version 0 (KIP-554).

Behaviour: DescribeUserScramCredentials lists the mechanisms and iterations of users from this node's image, never a key.
AlterUserScramCredentials is forwarded to the controller, which decides; the answer is sent once this node's own image has the change. On the
controller listener the controller is asked directly. A client may describe credentials if it may DESCRIBE the cluster, and change them if
it may ALTER it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final

from barnabas.broker.api.access import Access
from barnabas.broker.api.call import Answer, Call, Computed, Table
from barnabas.broker.authorization.permissions import check_permission
from barnabas.broker.controller.core.acls import name_in_error
from barnabas.broker.handlers.admin import forwarded
from barnabas.broker.handlers.needs import Needs
from barnabas.errors import BrokerError, ErrorCode
from barnabas.limits import REFUSAL_TEXTS_MAX
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.messages.scram_users import (
    AlteredScramUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribedScramUser,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserCredentialInfo,
)

if TYPE_CHECKING:
    from barnabas.broker.image.records import UserScramCredentialRecord

MECHANISMS: Final = (1, 2)


def describe_scram_credentials(needs: Needs, call: Call[DescribeUserScramCredentialsRequest]) -> Computed:
    """Lists the credentials of the named users, or of all users."""
    if not call.access.allows(AclOperation.DESCRIBE, AclResourceType.CLUSTER):
        raise BrokerError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    credentials = needs.current_image.image.scram_credentials
    elements = 0 if call.request.users else len(credentials)
    return Computed(call, partial(_described, call.request, credentials), elements)


def _described(
    request: DescribeUserScramCredentialsRequest,
    credentials: Mapping[tuple[int, str], UserScramCredentialRecord],
    _access: Access,
) -> DescribeUserScramCredentialsResponse:
    asked: dict[str, int]  # how often each user is named
    if request.users:
        asked = Counter(user.name for user in request.users)
    else:
        asked = dict.fromkeys((name for _, name in credentials), 1)
    results = []
    texts = 0
    for name, times in asked.items():
        infos = [
            UserCredentialInfo(mechanism=mechanism, iterations=found.iterations)
            for mechanism in MECHANISMS
            if (found := credentials.get((mechanism, name))) is not None
        ]
        if times == 1 and infos:
            results.append(DescribedScramUser(user=name, error_message="", credential_infos=infos))
            continue
        if times > 1:
            code = ErrorCode.DUPLICATE_RESOURCE
            text = (
                f"Cannot describe SCRAM credentials for the same user twice in a single request: {name_in_error(name)}"
            )
        else:
            code = ErrorCode.RESOURCE_NOT_FOUND
            text = f"Attempt to describe a user credential that does not exist: {name_in_error(name)}"
        texts += 1
        shown = text if texts <= REFUSAL_TEXTS_MAX else None
        results.append(DescribedScramUser(user=name, error_code=code, error_message=shown))
    return DescribeUserScramCredentialsResponse(error_message="", results=results)


def alter_scram_credentials(needs: Needs, call: Call[AlterUserScramCredentialsRequest]) -> Answer:
    """Changes credentials."""
    check_alteration(call)
    return forwarded(needs.controller, call, _refuse_alter)


def check_alteration(call: Call[AlterUserScramCredentialsRequest]) -> None:
    """Refuses a change by a client that may not make it: raises BrokerError(CLUSTER_AUTHORIZATION_FAILED)."""
    check_permission(call.access, AclOperation.ALTER, AclResourceType.CLUSTER)


def _refuse_describe(
    call: Call[DescribeUserScramCredentialsRequest], error: BrokerError
) -> DescribeUserScramCredentialsResponse:
    refused = DescribedScramUser(
        user="", error_code=error.code, error_message=error.message
    )  # without names, as in Kafka
    results = [refused] * len(call.request.users or ())
    return DescribeUserScramCredentialsResponse(error_code=error.code, error_message=error.message, results=results)


def _refuse_alter(
    call: Call[AlterUserScramCredentialsRequest], error: BrokerError
) -> AlterUserScramCredentialsResponse:
    deleted, upserted = (each.name for each in call.request.deletions), (each.name for each in call.request.upsertions)
    names = dict.fromkeys(chain(deleted, upserted))
    results = [AlteredScramUser(user=name, error_code=error.code, error_message=error.message) for name in names]
    return AlterUserScramCredentialsResponse(results=results)


HANDLERS: Final[Table] = {
    DescribeUserScramCredentialsRequest: (describe_scram_credentials, _refuse_describe),
    AlterUserScramCredentialsRequest: (alter_scram_credentials, _refuse_alter),
}
