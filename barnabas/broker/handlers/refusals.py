"""Refusals of whole requests that carry one error for each element of the request: a request may have 99,000 elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Final, TypeVar

from barnabas.broker.api.call import Call
from barnabas.broker.scheduling.slices import begun
from barnabas.errors import BrokerError
from barnabas.protocol.schema import Message
from barnabas.work import Steps, Work

ELEMENTS_PER_UNIT: Final = 8  # of work (work.Work)

Q = TypeVar("Q", bound=Message)
M = TypeVar("M", bound=Message)
T = TypeVar("T")
R = TypeVar("R")
E = TypeVar("E")
P = TypeVar("P")


def refused_in_slices(refuse: Callable[[Call[Q], BrokerError], Steps[M]]) -> Callable[[Call[Q], BrokerError], M | Work]:
    """Makes a function that refuses requests from one that does it in slices."""

    @wraps(refuse)
    def refused(call: Call[Q], error: BrokerError) -> M | Work:
        return begun(refuse(call, error))

    return refused


def refused_each(elements: Iterable[T], refused: Callable[[T], R]) -> Steps[list[R]]:
    """Returns what `refused` makes of each element."""
    found = []
    for number, element in enumerate(elements):
        if number % ELEMENTS_PER_UNIT == 0:
            yield 1
        found.append(refused(element))
    return found


def refused_nested(
    parents: Iterable[P],
    elements: Callable[[P], Iterable[E]],
    refused: Callable[[E], R],
    made: Callable[[P, list[R]], T],
) -> Steps[list[T]]:
    """Returns what `made` makes of each parent and of what `refused` makes of its elements."""
    answers = []
    number = 0
    for parent in parents:
        found = []
        for element in elements(parent):
            number += 1
            if number % ELEMENTS_PER_UNIT == 0:
                yield 1
            found.append(refused(element))
        number += 1
        if number % ELEMENTS_PER_UNIT == 0:
            yield 1
        answers.append(made(parent, found))
    return answers
