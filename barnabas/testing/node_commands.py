"""Table of commands inside a node's event loop: `command(host, **arguments)`, plain or a coroutine, with JSON arguments and result."""

from __future__ import annotations

from typing import Final

# name -> module:function
COMMANDS: Final[dict[str, str]] = {
    "partitions": "barnabas.testing.node_questions:partitions",
    "controller": "barnabas.testing.node_questions:controller",
    "live_brokers": "barnabas.testing.node_questions:live_brokers",
    "metrics_address": "barnabas.testing.node_questions:metrics_address",
    "ensure_internal_topics": "barnabas.testing.node_questions:ensure_internal_topics",
    "connections": "barnabas.testing.node_questions:connections",
    "lasting_state": "barnabas.testing.reset_commands:lasting_state",
    "forget_test": "barnabas.testing.reset_commands:forget_test",
    "set_release": "barnabas.testing.version_commands:set_release",
    "start_clock": "barnabas.testing.clock.commands:start_at",
    "begin_jump": "barnabas.testing.clock.commands:begin",
    "move_clock": "barnabas.testing.clock.commands:move",
    "clean_logs": "barnabas.testing.clock.commands:clean",
    "check_logs": "barnabas.testing.clock.commands:check_logs",
    "expire_groups_and_ids": "barnabas.testing.clock.commands:expire",
    "install_fault": "barnabas.testing.faults.commands:install",
    "end_fault": "barnabas.testing.faults.commands:end",
    "release_fault": "barnabas.testing.faults.commands:release",
    "remove_fault": "barnabas.testing.faults.commands:remove",
    "history_level": "barnabas.testing.history.commands:set_level",
    "history_last": "barnabas.testing.history.commands:last",
    "history_seen": "barnabas.testing.history.commands:seen",
    "set_links": "barnabas.testing.world.commands:set_links",
    "set_disk_faults": "barnabas.testing.world.commands:set_disk_faults",
    "lose_page_cache": "barnabas.testing.world.commands:lose_page_cache",
    "audit_watch": "barnabas.testing.audit.commands:watch",
    "audit_unwatch": "barnabas.testing.audit.commands:unwatch",
    "audit_decide": "barnabas.testing.audit.commands:settle_answer",
    "begin_move": "barnabas.testing.world.moves:begin_move",
    "move_progress": "barnabas.testing.world.moves:move_progress",
    "end_move": "barnabas.testing.world.moves:end_move",
    "flip_bit": "barnabas.testing.world.commands:flip_bit",
}
