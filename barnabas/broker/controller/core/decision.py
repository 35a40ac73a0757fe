"""Types of the controller's decisions, which are pure functions of a ClusterView and a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from barnabas.broker.api.call import Done
from barnabas.broker.api.principal import ANONYMOUS, Principal
from barnabas.broker.config.broker_config import BrokerConfig
from barnabas.broker.image.image import MetadataImage
from barnabas.broker.image.records import MetadataRecord
from barnabas.broker.quotas.mutations import MutationPermits
from barnabas.errors import BrokerError, ErrorCode, InvariantViolated
from barnabas.loggers import logger
from barnabas.work import Work, finished

log = logger("kafka.controller")

A = TypeVar("A", covariant=True)
Q = TypeVar("Q")
AnyDone = Done[Any]  # takes the answer of any decision, or the BrokerError that replaces it

# Records of one decision for an administrator. Kafka's limit is 10,000; this one lets 10,000 topics of one partition through.
RECORDS_MAX: Final = 20_000


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The state that a decision may read."""

    image: MetadataImage  # with everything appended so far, committed or not
    config: BrokerConfig  # of the controller's node
    new_id: Callable[[], bytes]  # returns 16 bytes
    next_offset: int  # of the decision's first record
    permits: MutationPermits | None = None  # mutation quota of the request; None: no quota
    principal: Principal = ANONYMOUS  # client of a delegation token request
    now_ms: int = 0  # Unix time, for delegation tokens

    def take_permits(self, partitions: int) -> None:
        """For partitions that the decision creates or deletes. Raises BrokerError(THROTTLING_QUOTA_EXCEEDED)."""
        if self.permits is not None:
            self.permits.take(partitions)


@dataclass(frozen=True, slots=True)
class MetadataDecision(Generic[A]):
    """An answer and its records."""

    answer: A
    records: Sequence[MetadataRecord] = ()


def deliver(done: AnyDone, answer: object) -> None:
    """Calls back; logs an exception of the callback other than InvariantViolated, so that other waiting answers are still sent."""
    try:
        done(answer)
    except InvariantViolated:
        raise
    except Exception:  # a bug of one callback must not stop the other answers
        log.exception("Answer of the controller could not be delivered")


class LongDecision(Generic[Q, A]):
    """Decorator of a long decision: a generator of work units that the controller runs in slices, and a plain call to its end."""

    def __init__(self, in_slices: Callable[[ClusterView, Q], Work]) -> None:
        self.in_slices = in_slices
        self.__doc__ = in_slices.__doc__

    def __call__(self, view: ClusterView, request: Q) -> MetadataDecision[A]:
        decision: MetadataDecision[A] = finished(self.in_slices(view, request))
        return decision


def check_record_count(count: int) -> None:
    """Raises BrokerError(POLICY_VIOLATION), as in Kafka (BoundedListTooLongException)."""
    if count > RECORDS_MAX:
        raise BrokerError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
