"""What a cluster handle does to the world around its brokers."""

from __future__ import annotations

from barnabas.testing.backend import not_possible
from barnabas.testing.errors import KitError
from barnabas.testing.handle import Handle
from barnabas.testing.world.links import Cut
from barnabas.testing.world.sides import checked_direction, linked_sides
from barnabas.testing.world.surroundings import LinkState, Surroundings, with_cut


def world_of(handle: Handle, what: str) -> Surroundings:
    """The world of a cluster. Raises KitError if it does not run, NotPossible if it was started elsewhere."""
    core = handle.core()
    if core.backend.mode == "remote":
        raise not_possible(what, "remote")
    found = next((each for each in core.extensions if isinstance(each, Surroundings)), None)
    return found or Surroundings(handle)


async def partition(handle: Handle, one: object, two: object, direction: object) -> Cut:
    """Cuts the links between two sides."""
    world, checked = world_of(handle, "partition"), checked_direction(direction)
    found = linked_sides(one, two, handle.core().check_broker)
    states = [LinkState(a, b, is_cut=True) for a, b in found]
    await world.set_flows(*(with_cut(each, checked) for each in states))
    return Cut(world, states)


async def isolate(handle: Handle, broker_id: int, direction: object) -> Cut:
    """Cuts the links between a broker and all others."""
    core = handle.core()
    others = [each for each in core.backend.broker_ids if each != core.check_broker(broker_id)]
    if not others:
        raise KitError(
            f"broker {broker_id} is the only broker of this cluster; cut its clients off by partition({broker_id}, 'clients')"
        )
    return await partition(handle, [broker_id], others, direction)
