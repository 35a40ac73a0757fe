"""The kit's commands about links and disks, inside a node's loop. `node_commands.py` has their names."""

from __future__ import annotations

from typing import Any

from barnabas.testing.node_host import NodeHost
from barnabas.testing.world.disks import DiskRule
from barnabas.testing.world.network import LinkRule
from barnabas.testing.world.rot import flip


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
    problem = flip(disk.real, folder, offset)
    replica = host.running.replicas.get(topic, partition)
    if not problem and replica is not None:
        log = replica.log
        log._tail.clear(log.log_end_offset)  # the copy in memory, which would hide the damage from readers
    return problem


def lose_page_cache(host: NodeHost) -> None:
    """Ends the node at once and loses what it has not synced."""
    host.kill()
    host.lose_page_cache()
