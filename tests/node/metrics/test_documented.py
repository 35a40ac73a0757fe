"""docs/metrics.md names every series of a broker: its table is compared with a scrape."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.support.broker.group_requests import PATIENT, commit, member, prepare
from tests.support.broker.nodes import Nodes, batch
from tests.support.broker.scrapes import get
from tests.support.broker.transactional_client import FEW, Client

TABLE = Path(__file__).parents[3] / "docs" / "metrics.md"
OURS = re.compile(r"(kafka|barnabas|process|python)_\w+")
ROW = re.compile(r"^\| `(\w+)`(?: \{([\w, ]*)\})? \| (\w+) \| .* \|$", re.MULTILINE)


async def served(nodes: Nodes) -> dict[str, tuple[set[str], str, str]]:
    """Labels, type and meaning of each family, by the name of its samples. A group and a transaction have series of their own."""
    node = await nodes.start(metrics_listen="127.0.0.1:0", **{**PATIENT, **FEW})
    peer = await nodes.peer(node)
    await prepare(peer)
    await member(peer)
    await commit(peer, 1, group="offsets")
    client = Client(peer)
    assert await client.init() == 0
    assert await client.produce() == 0
    node.replicas.leader("t", 0).append(batch(b"x"))
    assert node.metrics is not None
    text = (await get(node.metrics.address, "/metrics")).body.decode()
    return {
        (f"{family.name}_total" if family.type == "counter" else family.name): (
            {label for sample in family.samples for label in sample.labels},
            "gauge" if family.type == "unknown" else family.type,
            family.documentation,
        )
        for family in text_string_to_metric_families(text)
        if OURS.fullmatch(family.name)
    }


def row_of(name: str, labels: set[str], kind: str, doc: str) -> str:
    """The row of a family."""
    shown = f" {{{', '.join(sorted(labels))}}}" if labels else ""
    return f"| `{name}`{shown} | {kind} | {doc} |"


async def test_the_table_has_every_series(nodes: Nodes) -> None:
    found = await served(nodes)
    rows = {
        name: (set(filter(None, (each.strip() for each in labels.split(",")))), kind)
        for name, labels, kind in ROW.findall(TABLE.read_text())
        if OURS.fullmatch(name)
    }
    missing = [row_of(name, *found[name]) for name in found if name not in rows]
    assert not missing, "add to docs/metrics.md:\n" + "\n".join(missing)
    surplus = sorted(rows.keys() - found.keys())
    assert not surplus, "docs/metrics.md names series that are not served: " + ", ".join(surplus)
    differing = {name for name, (labels, kind) in rows.items() if (labels, kind) != found[name][:2] and found[name][0]}
    assert not differing, "their labels or types differ"
