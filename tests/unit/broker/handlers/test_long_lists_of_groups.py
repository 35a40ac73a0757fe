"""Very many groups of one shard are asked about in slices: each question to an authorizer takes some microseconds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from barnabas.broker.api.call import Call
from barnabas.broker.handlers import groups
from barnabas.protocol.acls import AclOperation, AclResourceType
from barnabas.protocol.messages.groups import ListedGroup, ListGroupsRequest
from tests.support.broker.some_access import SomeAccess

MANY = 3_000


def test_the_permissions_of_many_groups_are_asked_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [ListedGroup(group_id=f"g{number}") for number in range(MANY)]
    monkeypatch.setattr(groups, "listed_groups", lambda *_: list(listed))
    access = SomeAccess((AclOperation.DESCRIBE, AclResourceType.GROUP, "g7"))
    host = SimpleNamespace(is_loading=False, active_shards=lambda: [(0, None)])
    needs: Any = SimpleNamespace(groups=SimpleNamespace(host=host))
    origin: Any = SimpleNamespace(access=access)
    work = groups.list_groups(needs, Call(ListGroupsRequest(), 5, 16, "c", origin, "h"))
    asked = []
    while True:
        before = len(access.asked)
        try:
            next(work)
        except StopIteration as end:
            answer = end.value
            break
        asked.append(len(access.asked) - before)
    assert max(asked) <= 2
    assert [each.group_id for each in cast(Any, answer).groups] == ["g7"]
