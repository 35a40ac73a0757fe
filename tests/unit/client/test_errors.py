"""Errors: their class by code, what they carry and what they ask of the caller."""

from __future__ import annotations

import copy
import pickle

import pytest

from barnabas.client import errors
from barnabas.client.errors import KafkaError, error_for
from barnabas.client.types import TopicPartition
from barnabas.errors import BarnabasError, ErrorCode


@pytest.mark.parametrize(
    ("code", "kind", "retriable"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, errors.ResponseError, True),
        (ErrorCode.PRODUCER_FENCED, errors.ProducerFenced, False),
        (ErrorCode.INVALID_PRODUCER_EPOCH, errors.ProducerFenced, False),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, errors.UnknownTopicOrPartition, True),
        (ErrorCode.MESSAGE_TOO_LARGE, errors.RecordTooLarge, False),
        (ErrorCode.ILLEGAL_GENERATION, errors.CommitFailed, False),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, errors.AuthorizationFailed, False),
        (ErrorCode.POLICY_VIOLATION, errors.ResponseError, False),
    ],
)
def test_the_class_follows_the_code(code: ErrorCode, kind: type[KafkaError], retriable: bool) -> None:
    error = error_for(code, "in the broker's words", broker=3, topic="t", partition=7)
    assert type(error) is kind
    assert (error.code, error.broker, error.topic, error.partition) == (code, 3, "t", 7)
    assert error.retriable is retriable
    assert str(error) == f"{code.name}: in the broker's words (broker 3, topic 't', partition 7)"


def test_a_code_from_the_future_is_told_with_its_number() -> None:
    error = error_for(4711)
    assert error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "4711" in str(error)
    assert not error.retriable


def test_one_tree() -> None:
    classes = [c for c in vars(errors).values() if isinstance(c, type) and c.__module__ == errors.__name__]
    assert all(issubclass(c, KafkaError) for c in classes)
    assert issubclass(KafkaError, BarnabasError)
    assert errors.ProducerFenced("x").fatal
    assert errors.TransactionFailed("x").txn_requires_abort
    assert not errors.TransactionFailed("x").fatal


@pytest.mark.parametrize(
    "error",
    [
        errors.ProducerFenced("fenced", topic="orders"),
        errors.SendFailed(2, [errors.RequestTimedOut("late", broker=1)]),
        errors.LogTruncated(TopicPartition("orders", 0), 5, 3),
        errors.CorruptRecords(TopicPartition("orders", 0), 5, "damaged", next_offset=7),
        errors.PartlyWritten({1: errors.RecordTooLarge("too large")}, 3),
    ],
)
def test_an_error_can_be_sent_to_another_process(error: KafkaError) -> None:
    there = pickle.loads(pickle.dumps(error))
    assert (type(there), str(there), there.args) == (type(error), str(error), error.args)
    assert vars(there).keys() == vars(error).keys()
    assert str(copy.copy(error)) == str(error)
