"""Interceptors of one broker's client listener, shared by the parts of the kit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from barnabas.broker.api.call import Answer, Call
from barnabas.broker.api.router import Route, Router, Serve
from barnabas.protocol.messages.groups import SyncGroupRequest
from barnabas.testing.audit.watch import AuditWatch
from barnabas.testing.faults.rule import Rule
from barnabas.testing.faults.table import FaultTable, is_internal
from barnabas.testing.history.recorder import Recorder
from barnabas.testing.versions import Release, limiting_to

if TYPE_CHECKING:
    from barnabas.broker.handlers.all_needs import AllNeeds


class Interception:
    """The interceptors of a broker."""

    def __init__(
        self,
        node: AllNeeds,
        router: Router,
        recorder: Recorder,
        release: Release | None,
        emit: Callable[[str, Any], None],
    ) -> None:
        self.faults = FaultTable(node, router, self._on_hit, self.apply)
        self.watch = AuditWatch(self.faults.topic_name, emit, self.apply)
        # group → function that changes its SyncGroup requests
        self.sync_changes: dict[str, Callable[[SyncGroupRequest], None]] = {}
        self._router, self._recorder, self._release, self._emit = router, recorder, release, emit
        recorder.now_ms, recorder.topic_name = node.reactor.clock.now_ms, self.faults.topic_name
        self.apply()

    def apply(self) -> None:
        """Sets the interceptors that have something to do; called after each change of that."""
        level = self._recorder.level
        self._router.set_interceptors(
            [
                *([self._recorder.noting()] if level != "off" else ()),
                *([self.watch.stop] if self.watch.active else ()),
                *([self._change_sync] if self.sync_changes else ()),
                *([self.faults.meet] if self.faults.active else ()),
                *([self._recorder.record] if level == "all" else ()),
                *([limiting_to(self._release)] if self._release is not None else ()),
            ]
        )

    def _change_sync(self, serve: Serve, route: Route, call: Call[Any]) -> Answer:
        if isinstance(call.request, SyncGroupRequest) and not is_internal(call):
            change = self.sync_changes.get(call.request.group_id)
            if change is not None:
                change(call.request)
        return serve(route, call)

    def _on_hit(self, number: int, rule: Rule, met: dict[str, Any], call: Call[Any]) -> None:
        self._recorder.note_hit(number, rule, met, call)
        self._emit("fault", {"number": number, **met})
