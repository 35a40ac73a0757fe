"""`barnabas storage …`: data directories without a broker: what is in them, what Kafka would do with them, and new ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter, Token

from barnabas.cli.client_properties import WrongCall
from barnabas.cli.data_directory import DataDirectory, PartitionFolder, read_data_directory
from barnabas.cli.render import Cell, Json, Report, as_size, print_json
from barnabas.cli.scram_arguments import scram_records
from barnabas.cli.session import Ended, local_command
from barnabas.cli.storage_check import SEVERITIES, Finding, check_directories, stored_image
from barnabas.cli.storage_format import format_directories
from barnabas.cli.streams import printable
from barnabas.protocol.metadata_versions import metadata_version_level, metadata_version_name
from barnabas.runtime.randomness import SystemRng
from barnabas.storage.checkpoints import encode_uuid

METADATA_VERSION = "metadata.version"
HARMLESS = ("rebuild", "note")

app = App(
    name="storage",
    help_epilogue="Examples:\n\n- `barnabas storage info data`\n- `barnabas storage check data`\n"
    "- `barnabas storage format data --node-id 1`",
)


def _directory(_type: object, tokens: Sequence[Token]) -> Path:
    """An empty text names no directory, though `Path("")` is the present one."""
    if not tokens[0].value:
        raise ValueError("an empty name is no directory; write . for the present one")
    return Path(tokens[0].value)


Directories = Annotated[
    Path, Parameter(converter=_directory, required=True, help="A data directory; name all of one node (log.dirs).")
]


@app.command(help_epilogue="Examples:\n\n- `barnabas storage info data`\n- `barnabas storage info data --json`")
@local_command("storage info")
def info(*directories: Directories, json_: Json = False) -> None:
    """Show what data directories hold: owner, how they were stopped, partitions, metadata log. A broker may run on them."""
    found = [read_data_directory(path) for path in directories]
    if json_:
        print_json([_as_json(each) for each in found])
    else:
        print("\n\n".join(map(_text, found)))


@app.command(
    name="check",
    help_epilogue="Examples:\n\n- `barnabas storage check data`\n- `barnabas storage check disk1 disk2 --all-records --json`",
)
@local_command("storage check")
def check_(
    *directories: Directories,
    all_records: Annotated[
        bool, Parameter(help="Also check the records that Kafka trusts at a start; reads everything.")
    ] = False,
    json_: Json = False,
) -> None:
    """Say what Apache Kafka 4.3.1 would refuse, lose, set aside or rebuild at a start on these directories, and why.

    Changes nothing. The exit code is 1 if it would do more than rebuild.
    """
    found = [read_data_directory(path) for path in directories]
    image = next((stored_image(each) for each in found if each.metadata is not None), None)
    findings = list(check_directories(found, image, all_records=all_records))
    findings.sort(key=lambda each: (SEVERITIES.index(each.severity), each.path))
    if json_:
        print_json([each._asdict() for each in findings])
    else:
        _show_findings(findings)
    if any(each.severity not in HARMLESS for each in findings):
        raise Ended(1)


@app.command(name="random-uuid", help_epilogue="Examples:\n\n- `barnabas storage random-uuid`")
def random_uuid() -> int:
    """Print a new random id, for a cluster id."""
    print(encode_uuid(SystemRng().uuid()))
    return 0


@app.command(
    name="format",
    help_epilogue="Examples:\n\n- `barnabas storage format data --node-id 1`\n"
    "- `barnabas storage format disk1 disk2 --node-id 1 --cluster-id 5L6g3nShT-eMCtKaX86swQ --release 4.2`\n"
    "- `barnabas storage format data --node-id 1 --add-scram @users.txt`",
)
@local_command("storage format")
def format_(
    *directories: Directories,
    node_id: Annotated[int, Parameter(help="Node id of the broker that will use them.")],
    cluster_id: Annotated[
        str | None, Parameter(help="Id of the cluster, the same for all nodes [default: a random one].")
    ] = None,
    release: Annotated[str, Parameter(help="The metadata.version of a new cluster, such as 4.2 or 4.3-IV0.")] = "4.3",
    ignore_formatted: Annotated[
        bool, Parameter(help="Leave formatted directories as they are, instead of refusing them.")
    ] = False,
    add_scram: Annotated[
        list[str] | None,
        Parameter(
            name=["--add-scram", "-S"],
            help="A first user, as 'SCRAM-SHA-256=[name=alice,password=SECRET]'; may be given several times. "
            "The list of processes shows it: @FILE reads one argument from each line of a file.",
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Format directories before the first start of a node, as Kafka's kafka-storage does. Both Barnabas and Kafka start on them.

    The first directory gets the metadata log. Barnabas formats an empty directory itself at the first start.
    """
    try:
        level = metadata_version_level(release)
        rng = SystemRng()
        users = scram_records(_scram_arguments(add_scram or ()), rng)
        done = format_directories(directories, node_id, cluster_id, level, rng, ignore_formatted, users)
    except ValueError as error:
        raise WrongCall(str(error)) from None
    if not done:
        raise WrongCall("nothing to format: all directories are formatted")
    if json_:
        print_json([{"path": str(path), **asdict(meta)} for path, meta in done.items()])
    else:
        for path, meta in done.items():
            print(f"formatted {path}: cluster {meta.cluster_id}, node {meta.node_id}, {metadata_version_name(level)}")


def _scram_arguments(arguments: Sequence[str]) -> list[str]:
    """Replaces @FILE by the lines of the file. Raises ValueError if it cannot be read."""
    found: list[str] = []
    for argument in arguments:
        if not argument.startswith("@"):
            found.append(argument)
            continue
        try:
            lines = Path(argument[1:]).read_text().splitlines()
        except (OSError, UnicodeError) as error:
            raise ValueError(f"{argument[1:]} cannot be read: {error}") from None
        found += [line for line in lines if line.strip()]
    return found


def _as_json(directory: DataDirectory) -> dict[str, Any]:
    folder = directory.metadata
    image = stored_image(directory)
    metadata = None
    if folder is not None and image is not None:
        quorum = directory.quorum_state
        level = image.features.get(METADATA_VERSION)
        metadata = {
            **PARTITIONS.document(folder),
            "snapshots": [{"end_offset": each.end_offset, "epoch": each.epoch} for each in directory.snapshots],
            "leader_epoch": None if quorum is None else quorum.leader_epoch,
            "leader_id": None if quorum is None or quorum.leader_id < 0 else quorum.leader_id,
            "metadata_version": None if level is None else metadata_version_name(level),
            "topics": len(image.topics_by_name),
        }
    return {
        "path": str(directory.path.absolute()),
        **(asdict(directory.meta) if directory.meta else dict.fromkeys(("cluster_id", "node_id", "directory_id"))),
        "clean_shutdown": directory.is_clean,
        "running_pid": directory.locked_by,
        "metadata": metadata,
        "partitions": PARTITIONS.documents(directory.partitions),
        "aside": directory.aside,
        "foreign": directory.foreign_folders + directory.foreign_files,
        "problems": directory.problems,
    }


def _text(directory: DataDirectory) -> str:
    document = _as_json(directory)
    if document["running_pid"] is not None:
        state = f"process {document['running_pid']} runs on it"
    else:
        state = "stopped cleanly" if document["clean_shutdown"] else "not stopped cleanly, or never used"
    lines = [
        document["path"],
        f"  cluster {document['cluster_id'] or 'unknown'}, node {document['node_id']}, directory {document['directory_id']}",
        f"  {state}",
    ]
    metadata = document["metadata"]
    if metadata is not None:
        lines.append(
            f"  metadata log {metadata['log_start_offset']}..{metadata['log_end_offset']}, "
            f"{len(metadata['snapshots'])} snapshots, epoch {metadata['leader_epoch']}, "
            f"metadata.version {metadata['metadata_version']}, {metadata['topics']} topics"
        )
    lines += [f"  {name}: {why}" for name, why in document["problems"].items()]
    lines += [f"  not a broker's: {name}" for name in document["foreign"]]
    rows = directory.partitions
    return printable("\n".join(lines), "\n") + ("\n" + PARTITIONS.text(rows) if rows else "")


PARTITIONS = Report[PartitionFolder](
    Cell("partition", text=lambda folder: f"{folder.topic}-{folder.partition}", shrinks=True),
    Cell("", "topic"),
    Cell("", "partition"),
    Cell("topic id", "topic_id", lambda folder: folder.topic_id and encode_uuid(folder.topic_id), shrinks=True),
    Cell("segments", "segments", lambda folder: len(folder.logs)),
    Cell("size", "size_bytes", text=lambda folder: as_size(folder.size_bytes)),
    Cell("", "index_bytes"),
    Cell("start", "log_start_offset", lambda folder: folder.first_offset),
    Cell("recovered", "recovery_point"),
    Cell("high watermark", "high_watermark"),
    Cell("end", "log_end_offset"),
    Cell("", "leader_epochs", lambda folder: [{"epoch": epoch, "start_offset": at} for epoch, at in folder.epochs]),
    Cell("", "producer_snapshots"),
    Cell("", "problems"),
)


def _show_findings(findings: list[Finding]) -> None:
    for each in findings:
        print(printable(f"{each.severity}: {each.path}\n  {each.what}\n  → {each.effect}", "\n"))
    counts = Counter(each.severity for each in findings)
    if not counts:
        print("Kafka starts on it, and has nothing to repair")
    else:
        print(", ".join(f"{counts[severity]} × {severity}" for severity in SEVERITIES if counts[severity]))
