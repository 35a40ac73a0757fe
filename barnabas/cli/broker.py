"""`barnabas broker …`: lists the registered brokers, and removes the registration of one that is gone for good."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from barnabas.cli.confirmation import Yes, confirm
from barnabas.cli.render import Cell, Json, Report
from barnabas.cli.session import DEFAULT_CONNECTION, Connection, client_command
from barnabas.client.admin import BrokerDescription
from barnabas.client.errors import IllegalState

app = App(name="broker", help_epilogue="Examples:\n\n- `barnabas broker list`\n- `barnabas broker unregister 3 --yes`")


@app.command(
    name=["list", "ls"], help_epilogue="Examples:\n\n- `barnabas broker list`\n- `barnabas broker list --json`"
)
@client_command("broker list")
async def list_(*, json_: Json = False, connection: Connection = DEFAULT_CONNECTION) -> None:
    """List the registered brokers, with those that do not serve."""
    async with connection.admin() as admin:
        brokers = await admin.list_brokers()
    BROKERS.show(brokers, json_)


@app.command(help_epilogue="Examples:\n\n- `barnabas broker unregister 3`\n- `barnabas broker unregister 3 --yes`")
@client_command("broker unregister")
async def unregister(
    node_id: Annotated[int, Parameter(help="Node id of a broker that is down for good.")],
    *,
    yes: Yes = False,
    connection: Connection = DEFAULT_CONNECTION,
) -> None:
    """Remove the registration of a broker that is down for good. First move its replicas to other brokers."""
    async with connection.admin() as admin:
        known = {each.node_id: each for each in await admin.list_brokers()}
        if node_id in known and not known[node_id].is_fenced:
            raise IllegalState(f"broker {node_id} serves now and would register again: stop it first")
        topics = await admin.describe_topics(await admin.list_topics(include_internal=True))
        held = sum(node_id in partition.replicas for topic in topics.values() for partition in topic.partitions)
        if held:
            raise IllegalState(
                f"broker {node_id} holds replicas of {held} partitions: move them first, with `partition reassign`"
            )
        confirm(yes, f"remove the registration of broker {node_id}?")
        await admin.unregister_broker(node_id)
        print(f"broker {node_id} is no longer registered")


BROKERS = Report[BrokerDescription](
    Cell("node", "node_id"),
    Cell("address", text=lambda b: f"{b.host}:{b.port}", shrinks=True),
    Cell("", "host"),
    Cell("", "port"),
    Cell("rack", "rack"),
    Cell("state", text=lambda b: "fenced" if b.is_fenced else "serves", wrong=lambda b: b.is_fenced),
    Cell("", "is_fenced"),
)
