"""The `barnabas` command: every command group is a module of this folder, imported only when it is called.

Exit codes: 0 done; 1 the work failed (a row lost, a broker not reached); 2 the call is wrong.
"""

from __future__ import annotations

import sys

from cyclopts import App

from barnabas import __version__

__all__ = ["app", "main"]

app = App(
    name="barnabas",
    help="A Kafka cluster in Python: brokers with Kafka's wire protocol, Kafka's files and exactly-once transactions.",
    version=__version__,
    help_epilogue=(
        "Examples:\n\n"
        "`barnabas serve --data /tmp/barnabas` starts one broker on 127.0.0.1:9092.\n\n"
        "`barnabas topic create orders --partitions 3`, `echo hello | barnabas produce orders`, `barnabas consume orders --from-beginning`.\n\n"
        "`barnabas demo` shows an exactly-once copy through a crash of its worker."
    ),
)
app.command("barnabas.cli.serve:serve", name="serve", help="Start one broker and serve until SIGTERM.")
app.command("barnabas.cli.topic:app", name="topic", help="Create, list, describe, change and delete topics.")
app.command("barnabas.cli.produce:produce", name="produce", help="Write lines of standard input to a topic.")
app.command("barnabas.cli.consume:consume", name="consume", help="Print a topic's records.")
app.command("barnabas.cli.txn:app", name="txn", help="List and describe transactions.")
app.command("barnabas.cli.dump:dump", name="dump", help="Print any file of a partition, readable.")
app.command(
    "barnabas.cli.demo:demo", name="demo", help="The main job: an exactly-once copy through a crash of its worker."
)


def main() -> None:
    """The console script's entry."""
    sys.exit(app())


if __name__ == "__main__":
    main()
