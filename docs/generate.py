#!/usr/bin/env python3
"""Draws docs/coverage.md, docs/configuration.md, the index in docs/proof.md and the commands that shells complete.

Run by `make docs`. `tests/unit/test_docs.py` fails when a document no longer says what the code says.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import get_args

from cyclopts import App

from barnabas.broker.config.key import ConfigKey
from barnabas.broker.config.table import GROUP_KEYS, PREFIXES, SERVER_KEYS, TOPIC_KEYS, UNSERVED_KEYS, Unserved
from barnabas.broker.coordinator.groups.classic.state import VALID_PREVIOUS as GROUP_STATES
from barnabas.broker.coordinator.transactions.state import VALID_PREVIOUS as TRANSACTION_STATES
from barnabas.broker.quorum.core.roles import VALID_PREVIOUS as QUORUM_ROLES
from barnabas.cli.app import app
from barnabas.client.producer.core.transactions import VALID_PREVIOUS as PRODUCER_STATES
from barnabas.protocol.registry import API, PERMISSIONS

HERE = Path(__file__).parent

HEAD = """# Coverage

Drawn from the code by `make docs`; don't edit. How each API behaves and where it differs from Kafka stands at the top of its handler module, `barnabas/broker/handlers/<family>.py`.

## APIs served

Versions as in Apache Kafka 4.3.1, except where "advertised" says otherwise. Flexible: from which version on compact encodings and tagged fields are used.

| key | API | versions served | advertised | flexible | listeners | family |
|---|---|---|---|---|---|---|
"""

NOT_SERVED = {
    "AlterReplicaLogDirs": (34,),
    "Share groups: heartbeats, fetches, acknowledgements, state, offsets": (76, 77, 78, 79, *range(83, 88), 90, 91, 92),
    "Voters of the quorum: AddRaftVoter, RemoveRaftVoter, UpdateRaftVoter": (80, 81, 82),
    "Streams groups: StreamsGroupHeartbeat, StreamsGroupDescribe": (88, 89),
}

NOT_SERVED_HEAD = """
## APIs not served

ApiVersions does not list them, so Kafka's clients raise UnsupportedVersionException and send no request. Kafka Streams works with `group.protocol=classic`, its default.

| keys | APIs |
|---|---|
"""

JAVA_APPLICATIONS = """
## Java applications that were run

Run by hand on 2026-11-23 with the releases of Apache Kafka 4.3.1, on Java 17, on a machine with two cores and a load of 20 to 45. The suite does not repeat these runs. "Killed" means SIGKILL.

| application | what was run | result |
|---|---|---|
| Kafka Streams | WordCountDemo; a topology with an aggregate behind a repartition topic, a join of streams, a join with a table, windows with suppress; `exactly_once_v2`, two instances, standby replicas; three brokers; 11 brokers and 5 instances were killed in 145 s | 12,600 records: each update of the aggregate once and in order, no result of a join lost or doubled, all windows right; interactive queries answer |
| Kafka Streams, secured | the same topology over TLS and SCRAM-SHA-256 with ACLs, one instance | without ACLs TopicAuthorizationException, with them all results right |
| Kafka Streams with `group.protocol=streams` | one instance | fails with UnsupportedVersionException: the cluster does not support the STREAMS group protocol |
| StreamsResetter | an application with five internal topics | offsets are reset, internal topics deleted |
| Kafka Connect, distributed | two workers, `exactly.once.source.support=enabled`, FileStream source and sink; pause, stop, resume; offsets read, altered and reset by REST; a broker and a worker were killed | every line of the source once, also over the kills |
| MirrorMaker 2 | Kafka to Barnabas and Barnabas to Kafka at once, without transactions; topics, configs, ACLs, groups' offsets, checkpoints, heartbeats; the broker was killed | 7,113 records in four topics, equal in keys, values, headers, timestamps and partitions |
| Java's Admin | all 135 methods, 170 calls, beside a real Kafka | differences: what [deviations](deviations.md) lists, the configs of a broker and their documentation, and a node without controller listener lists no endpoints of the quorum |
| Kafka's tools for performance, verifiable clients, latency, transactions, quorum, log directories, elections, features, cluster, offsets, groups, client metrics, replica verification | three brokers | work; `kafka-share-groups` and `kafka-streams-groups` list no groups and describe none (UnsupportedVersionException) |
"""


def span(versions: tuple[int, int]) -> str:
    return str(versions[0]) if versions[0] == versions[1] else f"{versions[0]}–{versions[1]}"


def apis() -> str:
    rows = []
    for api in sorted(API.values(), key=lambda api: api.key):
        flexible = "" if api.flexible_since is None else f"{api.flexible_since}+"
        advertised = "" if api.advertised == api.versions else span(api.advertised)
        listeners = ", ".join(sorted(api.listeners))
        cells = [str(api.key), api.name, span(api.versions), advertised, flexible, listeners, api.family]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def not_served() -> str:
    rows = [f"| {', '.join(str(key) for key in keys)} | {names} |" for names, keys in NOT_SERVED.items()]
    return NOT_SERVED_HEAD + "\n".join(rows) + "\n"


def diagram(title: str, source: str, valid_previous: Mapping[Enum, frozenset[Enum]]) -> str:
    """A state diagram in Mermaid, which code hosts draw."""
    edges = [
        f"    {before.name} --> {state.name}"
        for state, previous in valid_previous.items()
        for before in sorted(previous, key=lambda s: list(type(s)).index(s))
    ]
    lines = "\n".join(edges)
    return f"\n## {title}\n\nFrom `{source}`.\n\n```mermaid\nstateDiagram-v2\n{lines}\n```\n"


def coverage() -> str:
    return (
        HEAD
        + apis()
        + not_served()
        + PERMISSIONS_HEAD
        + permissions()
        + JAVA_APPLICATIONS
        + diagram(
            "States of a transactional id", "barnabas/broker/coordinator/transactions/state.py", TRANSACTION_STATES
        )
        + diagram("States of a classic group", "barnabas/broker/coordinator/groups/classic/state.py", GROUP_STATES)
        + diagram("Roles in the metadata quorum", "barnabas/broker/quorum/core/roles.py", QUORUM_ROLES)
        + diagram("States of the bundled producer", "barnabas/client/producer/core/transactions.py", PRODUCER_STATES)
    )


SETTINGS_HEAD = """# Configuration

Drawn from the code by `make docs`; don't edit. Names, types and defaults are those of Apache Kafka 4.3.1, except where a line says otherwise.

Settings of a node come from a `server.properties` (`barnabas serve --config FILE`) and from `--set key=value`, which wins. `barnabas up --set key=value` sets a key on each of its nodes.

- A value may be read elsewhere, as in Kafka: `${env:NAME}`, `${file:/path/x.properties:key}` and `${dir:/path:file}`, with Kafka's FileConfigProvider, DirectoryConfigProvider and EnvVarConfigProvider (`config.providers`, `config.providers.NAME.class`, `config.providers.NAME.param.allowed.paths` and `.allowlist.pattern`).
- A setting marked **no effect** is accepted, stored and shown, and changes nothing. A node names each such setting of its file or command line when it starts; the controller logs one line when a client sets one for a topic, a broker or a group.
- A setting that promises what is not served (tiered storage, a policy class, …) is **refused**: the node does not start, and a client gets INVALID_CONFIG.
- An unknown setting is ignored, and named with the nearest known one. With `--strict` a node does not start where a setting would be ignored or has no effect.
- *dynamic*: `kafka-configs --alter` changes the setting while brokers run, for one broker or for all.
"""


def settings_table(keys: Iterable[ConfigKey], *, dynamic: bool) -> str:
    head = ["key", "type", "default", *(["dynamic"] if dynamic else []), "effect"]
    rows = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for key in sorted(keys, key=lambda key: key.name):
        text = key.render(key.default)
        shown = "" if text is None else "(empty)" if not text else f"`{text}`"
        effect = key.doc if key.no_effect is None else key.doc.replace("No effect here", "**No effect** here")
        cells = [f"`{key.name}`", key.type.name.lower(), shown, *(["yes" if key.dynamic else ""] * dynamic), effect]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def unserved_table(keys: Mapping[str, Unserved], ending: str) -> Iterator[str]:
    for name, (reason, refused) in sorted(keys.items()):
        yield f"| `{name}{ending}` | {'**refused**' if refused else '**no effect**'} | {reason} |"


def configuration() -> str:
    rows = [*unserved_table(PREFIXES, "*"), *unserved_table(UNSERVED_KEYS, "")]
    return "\n".join(
        [
            SETTINGS_HEAD,
            "## Nodes\n",
            settings_table(SERVER_KEYS.values(), dynamic=True),
            "## Topics\n",
            "Set by CreateTopics, `barnabas topic create --set`, `kafka-configs --entity-type topics`; all are dynamic. A topic that does not set a key has the node's.\n",
            settings_table(TOPIC_KEYS.values(), dynamic=False),
            "## Groups\n",
            "Set by `kafka-configs --entity-type groups`; all are dynamic. Kafka's keys of share and streams groups are **refused**: such groups are not served.\n",
            settings_table(GROUP_KEYS.values(), dynamic=False),
            "## Settings of Kafka that are not served\n",
            "An empty value is not refused, nor is `false` for a switch.\n",
            "| key | a node's answer | reason |\n|---|---|---|",
            *rows,
            "",
        ]
    )


PERMISSIONS_HEAD = """
## What each API needs

The permissions for which a node with an [authorizer](security.md#authorization) asks. A remark says when a permission is needed. A client without the permission gets the error of the resource (TOPIC_, GROUP_, CLUSTER_ or TRANSACTIONAL_ID_AUTHORIZATION_FAILED), for the element that it concerns or for the whole request.

"""


def permissions() -> str:
    """A table: each served API, and what it needs."""
    rows = ["| key | API | operation on resource |", "|---|---|---|"]
    for api in sorted(API.values(), key=lambda api: api.key):
        needed = PERMISSIONS.get(api.key)
        cell = "not declared" if needed is None else "none"  # a test fails for the first
        if needed:
            cell = "<br>".join(
                f"{each.operation.name} on {each.resource.name}{each.remark and f': {each.remark}'}" for each in needed
            )
        rows.append(f"| {api.key} | {api.name} | {cell} |")
    return "\n".join(rows) + "\n"


INDEX_HEAD = "Drawn from the markers of the tests by `make docs`."


def markers(node: ast.AST) -> set[str]:
    """The names of `pytest.mark.NAME` within a decorator list or an assignment."""
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Attribute) and each.value.attr == "mark"
    }


def index_of_tests() -> str:
    """A row for each file of tests that the suite leaves out, with its marker."""
    rows = ["| marker | file | tests |", "|---|---|---|"]
    for marker in ("soak", "chaos"):
        for file in sorted((HERE.parent / "tests").rglob("test_*.py")):
            tree = ast.parse(file.read_text())
            whole = any(marker in markers(each) for each in tree.body if isinstance(each, ast.Assign))
            names = [
                f"`{each.name}`"
                for each in ast.walk(tree)
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                and each.name.startswith("test_")
                and (whole or any(marker in markers(decorator) for decorator in each.decorator_list))
            ]
            if names:
                rows.append(f"| {marker} | `{file.relative_to(HERE.parent / 'tests')}` | {', '.join(names)} |")
    return "\n".join(rows) + "\n"


def proof() -> str:
    """The document as it is, with its index drawn again."""
    before, _, _ = (HERE / "proof.md").read_text().partition(INDEX_HEAD)
    return f"{before}{INDEX_HEAD}\n\n{index_of_tests()}"


def commands() -> str:
    """A line for each command: its words, what its arguments name, and what may follow: commands or values, then options."""
    kinds = {"topic": "topics", "topics": "topics", "group": "groups", "groups": "groups"}
    lines: list[str] = []

    def walk(parent: App, words: tuple[str, ...]) -> None:
        inner = sorted(name for name in parent if not name.startswith("-"))
        kind, options, values = "", ["--help"], list(inner)
        if parent.default_command is not None:
            arguments = parent.assemble_argument_collection(
                default_parameter=app.default_parameter, parse_docstring=True
            )
            places = [
                each for each in arguments if each.index is not None or each.field_info.kind.name == "VAR_POSITIONAL"
            ]
            for each in places[:1]:
                kind = kinds.get(each.field_info.name, "profiles" if words[0] == "profile" else "")
                kind = "" if words[-1] == "create" else kind
                values += [value for value in get_args(each.hint) if isinstance(value, str)]
            options += [
                name for each in arguments for name in each.names if name.startswith("-") and each not in places
            ]
        lines.append("|".join((" ".join(words), kind, " ".join([*values, *sorted(set(options))]))))
        for name in inner:
            walk(parent[name], (*words, name))

    walk(app, ())
    return "\n".join(lines) + "\n"


DOCUMENTS = {
    "configuration.md": configuration,
    "coverage.md": coverage,
    "proof.md": proof,
    "../barnabas/cli/completions/commands": commands,
}


def main() -> None:
    stale = [
        name for name, draw in DOCUMENTS.items() if not (HERE / name).exists() or (HERE / name).read_text() != draw()
    ]
    if "--check" in sys.argv:
        sys.exit(f"{', '.join(stale)} stale in docs/: run make docs" if stale else 0)
    for name in stale:
        (HERE / name).write_text(DOCUMENTS[name]())


if __name__ == "__main__":
    main()
