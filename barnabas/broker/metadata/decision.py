"""What decisions of the metadata controller have in common: what they look at, and what they come to.

A decision is a pure function of a ClusterView and a request; its records are appended by the controller, its answer leaves once
they are committed and in the image.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from barnabas.broker.config import BrokerConfig
from barnabas.broker.metadata.image import MetadataImage
from barnabas.broker.metadata.records import MetadataRecord
from barnabas.errors import InvariantViolated

__all__ = ["ClusterView", "MetadataDecision", "deliver"]

log = logging.getLogger(__name__)

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What a decision may look at.

    image: the cluster with everything appended so far, committed or not.
    config: of the node that runs the controller.
    new_id: a fresh 16-byte id.
    next_offset: where the decision's first record will be written.
    """

    image: MetadataImage
    config: BrokerConfig
    new_id: Callable[[], bytes]
    next_offset: int


@dataclass(frozen=True, slots=True)
class MetadataDecision(Generic[A]):
    """An answer and the records it stands for."""

    answer: A
    records: Sequence[MetadataRecord] = ()


def deliver(done: Callable[[Any], None], answer: Any) -> None:
    """Gives out an answer. What its taker fails with is the taker's, and logged: the others that wait are answered all the same.

    Raises:
        InvariantViolated: the node cannot go on.
    """
    try:
        done(answer)
    except InvariantViolated:
        raise
    except Exception:  # any bug of the taker's: the log has the trace
        log.exception("an answer of the controller could not be delivered")
