"""The tree of commands and their help texts, for the parser of the command line.

Each command group is a module of this folder, imported only when it is called. This module holds the help text and the examples
of each command, so that `--help` imports no other module. The command's module holds its options.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, get_args

from cyclopts import App, CycloptsError, Group, MissingArgumentError, Parameter, Token, UnusedCliTokensError, convert

from barnabas import __version__

# heading → commands: name, function, help text, examples (command groups have examples of their own)
_COMMANDS: dict[str, tuple[tuple[str, str, str, tuple[str, ...]], ...]] = {
    "Start": (
        (
            "up",
            "up:up",
            "Start a cluster on this machine and serve until Ctrl-C.",
            (
                "`barnabas up` starts three brokers on 127.0.0.1:9092, :9093 and :9094.",
                "`barnabas up --brokers 5 --port 19092 --data ./cluster` keeps its data for the next time.",
                "`barnabas up --port 0 --set transaction.state.log.num.partitions=10` takes free ports and a setting.",
                "`barnabas up --tls --sasl scram --acl` starts a secured cluster, with files for its clients.",
                "`barnabas up --brokers 1 --port 0 --lab 127.0.0.1:0` serves tests in any language: faults over HTTP.",
            ),
        ),
        (
            "serve",
            "serve:serve",
            "Start one node, alone or of a cluster, and serve until SIGTERM.",
            (
                "`barnabas serve --data /tmp/barnabas` serves on 127.0.0.1:9092.",
                "`barnabas serve --listen 127.0.0.1:0 --data d --set log.retention.ms=60000` takes a free port and a setting.",
                "`barnabas serve --data d --config server.properties` reads Kafka's own file of settings.",
                "`barnabas serve --node-id 1 --listen 127.0.0.1:9092 --quorum 1@127.0.0.1:19092,2@127.0.0.1:19093,3@127.0.0.1:19094 --data d1` starts the first of three nodes.",
            ),
        ),
        (
            "certificates",
            "certificates:certificates",
            "Make a certificate authority and certificates.",
            (
                "`barnabas certificates secrets broker-1=broker-1,localhost broker-2=broker-2,localhost alice` makes `secrets/ca.pem`, `secrets/broker-1.pem` and so on.",
            ),
        ),
    ),
    "Records": (
        (
            "produce",
            "produce:produce",
            "Write lines of standard input or of files to a topic.",
            (
                "`echo hello | barnabas produce orders`",
                "`barnabas produce orders --key-separator : --transactional-id t1 < lines.txt` writes all lines or none.",
                "`barnabas produce orders --json --file orders.jsonl` writes what `barnabas consume --json` has printed.",
            ),
        ),
        (
            "consume",
            "consume:consume",
            "Print records of topics.",
            (
                "`barnabas consume orders --from-beginning --exit-at-end`",
                "`barnabas consume orders --tail 10 --json` shows the last ten records with offsets, timestamps and headers.",
                "`barnabas consume orders --since 10m --format '%p@%o %k=%s\\n'` formats records as kcat does.",
                "`barnabas consume orders --group billing | head` commits what it has printed, and leaves its group.",
            ),
        ),
        ("records", "records:app", "Delete records.", ()),
        (
            "export",
            "export:export",
            "Write topics to Parquet files, by a Spark batch job.",
            (
                "`barnabas export orders --to orders.parquet` from a running cluster.",
                "`barnabas export orders --to out --data d1 --data d2` from the directories of stopped brokers.",
            ),
        ),
    ),
    "Topics and groups": (
        ("topic", "topic:app", "Create, list, describe, change and delete topics.", ()),
        ("partition", "partition:app", "List, move and balance partitions; elect their leaders.", ()),
        ("group", "group:app", "List, describe, reset and delete consumer groups.", ()),
        ("config", "config:app", "Show and change configs of topics, brokers and groups.", ()),
    ),
    "Transactions": (
        ("txn", "txn:app", "List, describe, explain and end transactions.", ()),
        ("sink", "sink:app", "List and describe the exactly-once sinks of Spark queries.", ()),
    ),
    "Operation": (
        ("cluster", "cluster:app", "Show the cluster: its id, the brokers that serve, its features, its health.", ()),
        ("broker", "broker:app", "List brokers and remove registrations.", ()),
        ("quorum", "quorum:app", "Show the metadata quorum.", ()),
        ("features", "features:app", "Show and change the levels of features.", ()),
        (
            "log-dirs",
            "log_dirs:log_dirs",
            "Show the log directories of brokers and their sizes.",
            (
                "`barnabas log-dirs`",
                "`barnabas log-dirs --broker 1 --topic orders --partitions`",
                "`barnabas log-dirs --json`",
            ),
        ),
        ("storage", "storage:app", "Inspect, check and format data directories, without a broker.", ()),
        (
            "dump",
            "dump:dump",
            "Print files of a partition, or of a whole data directory, in readable form.",
            (
                "`barnabas dump data/orders-0` shows everything a partition keeps: batches, records, indexes, snapshots, epochs.",
                "`barnabas dump data/orders-0 --offsets 100..200` shows the records of a range.",
                "`barnabas dump --no-records data/__transaction_state-7/*.log` shows the batches alone.",
                "`barnabas dump data --json | head` shows a data directory as JSON lines.",
            ),
        ),
        ("profile", "profile:app", "Store the settings of a connection under a name.", ()),
        (
            "completion",
            "completion:completion",
            "Print a script that completes commands and options in a shell.",
            (
                '`eval "$(barnabas completion bash)"` in ~/.bashrc.',
                "`barnabas completion zsh > _barnabas` in a directory of $fpath.",
                "`barnabas completion fish > ~/.config/fish/completions/barnabas.fish`",
            ),
        ),
    ),
    "Security": (
        ("acl", "acl:app", "List, add, remove and explain ACLs.", ()),
        ("user", "user:app", "Create, list and delete users that log in with SCRAM.", ()),
        ("quota", "quota:app", "Show and change quotas of users, client ids and addresses.", ()),
    ),
}


def _version() -> str:
    """Returns the version, and whether the hot loops are compiled (setup.py)."""
    from barnabas.protocol import record_codec

    plain = (record_codec.__file__ or "").endswith(".py")
    return f"{__version__} (hot loops: {'plain Python' if plain else 'compiled'})"


def _shown_default(value: object) -> str | None:
    """Returns the default as `--help` shows it; None for a flag that is off and for an option without values."""
    return None if value is None or value is False or value in ((), "") else str(value)


def _converted(kind: Any, tokens: Sequence[Token]) -> Any:
    """Converts arguments as the parser does, but rounds no number: `--max-records 1.5` is wrong."""
    if kind is int or int in get_args(kind):
        for token in tokens:
            if "." in token.value:
                raise ValueError(f"{token.value!r} is not a whole number")
    return convert(kind, tokens)


def _examples(*examples: str) -> str:
    return "Examples:\n\n- " + "\n- ".join(examples)


app = App(
    name="barnabas",
    help="A Kafka cluster in Python: brokers with Kafka's wire protocol, Kafka's files and exactly-once transactions.",
    version=_version,
    default_parameter=Parameter(show_default=_shown_default, converter=_converted, negative=()),
    help_epilogue=_examples(
        "`barnabas up` starts three brokers on 127.0.0.1:9092, :9093 and :9094.",
        "`echo hello | barnabas produce orders` writes a record.",
        "`barnabas consume orders --from-beginning` reads it.",
    ),
)
for _place, (_heading, _commands) in enumerate(_COMMANDS.items()):
    _group = Group(_heading, sort_key=_place)
    for _number, (_name, _target, _help, _shown) in enumerate(_commands):
        _more = {"help_epilogue": _examples(*_shown)} if _shown else {}
        app.command(f"barnabas.cli.{_target}", name=_name, help=_help, group=_group, sort_key=_number, **_more)
_group = Group("Options", sort_key=len(_COMMANDS))
app["--help"].group = app["--version"].group = _group


def called(arguments: list[str]) -> object:
    """Runs the command of these arguments. Returns what it returns; 2 if the arguments are wrong, which is printed."""
    try:
        return app(arguments, print_error=False, exit_on_error=False, result_action="return_value")
    except CycloptsError as error:
        return _wrong_arguments(error)


def _wrong_arguments(error: CycloptsError) -> int:
    """Prints what is wrong with the arguments, in one line, and where help is; returns the exit code 2."""
    command = " ".join(("barnabas", *(error.command_chain or ())))
    error.verbose = False
    reason = " ".join(str(error).split())
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        reason = f"unexpected argument {error.unused_tokens[0]!r}"
    elif isinstance(error, MissingArgumentError) and error.argument is not None:
        named, position = error.argument.name, error.argument.index
        if error.keyword is not None:
            reason = f"{error.keyword} needs a value"
        else:
            reason = f"{named if position is None else named.removeprefix('--').upper()} is missing"
    if not reason.endswith("..."):
        reason = reason.rstrip(".")
    print(f"{command}: {reason}; `{command} --help` shows the options", file=sys.stderr)
    return 2
