"""The kit's commands about links and disks, inside a node's loop. `node_commands.py` has their names."""

from __future__ import annotations

from typing import Any

from barnabas.ports import Disk
from barnabas.protocol.batch_layout import HEADER_SIZE, LENGTH_OVERHEAD, offset_of, struct_of
from barnabas.testing.node_host import NodeHost
from barnabas.testing.world.disks import DiskRule
from barnabas.testing.world.network import LinkRule

_EXTENT = struct_of("base_offset", "batch_length")
_DELTA_OFFSET = offset_of("last_offset_delta")
_LOG = ".log"


def set_links(host: NodeHost, rules: list[dict[str, Any]], ports: dict[str, int]) -> None:
    """Replaces all rules about links. `ports`: port of a listener for clients or brokers → id of its broker."""
    known = {int(port): broker_id for port, broker_id in ports.items()}
    known |= {each.port: node_id for node_id, each in host.config.voter_endpoints.items()}
    host.links.set_rules(tuple(LinkRule.of(each) for each in rules), known)


def set_disk_faults(host: NodeHost, faults: list[dict[str, Any]]) -> None:
    """Replaces all faults of the disks; a fault of all of them counts its calls over all."""
    rules = [DiskRule(**each) for each in faults]
    for number, disk in enumerate(host.files, start=1):
        disk.set_faults([each for each in rules if each.log_dir in (None, number)])


def flip_bit(host: NodeHost, topic: str, partition: int, offset: int) -> str:
    """Flips a bit of a record on the disk. Returns what is wrong, or nothing."""
    folder = f"{topic}-{partition}"
    disk = next((each for each in host.files if each.exists(folder)), host.files[0])
    problem = _flip(disk.real, folder, offset)
    replica = host.running.replicas.get(topic, partition)
    if not problem and replica is not None:
        log = replica.log
        log._tail.clear(log.log_end_offset)  # the copy in memory, which would hide the damage from readers
    return problem


def lose_page_cache(host: NodeHost) -> None:
    """Ends the node at once and loses what it has not synced."""
    host.kill()
    host.lose_page_cache()


def _flip(disk: Disk, folder: str, offset: int) -> str:
    """Flips the lowest bit of the last byte of the batch with this offset. Returns what is wrong, or nothing."""
    if not disk.exists(folder):
        return f"it has no replica {folder}"
    bases = sorted(int(each[: -len(_LOG)]) for each in disk.listdir(folder) if each.endswith(_LOG))
    base = max((each for each in bases if each <= offset), default=-1)
    if base < 0:
        return f"{folder} has no record at offset {offset}: it begins at {bases[0] if bases else 0}"
    file = disk.open(f"{folder}/{base:020d}{_LOG}")
    try:
        size, position = file.size(), 0
        while position + HEADER_SIZE <= size:
            header = file.pread(HEADER_SIZE, position)
            first, length = _EXTENT.unpack_from(header)
            end = position + length + LENGTH_OVERHEAD
            last = first + int.from_bytes(header[_DELTA_OFFSET : _DELTA_OFFSET + 4], "big")
            if first <= offset <= last and end <= size:
                [byte] = file.pread(1, end - 1)
                file.pwrite(bytes([byte ^ 1]), end - 1)
                return ""
            position = max(end, position + HEADER_SIZE)
    finally:
        file.close()
    return f"{folder} has no record at offset {offset}"
