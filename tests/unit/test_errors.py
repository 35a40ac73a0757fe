"""The table of error codes, against kio's, which is generated from Kafka's."""

from __future__ import annotations

from kio.schema.errors import ErrorCode as KioErrorCode

from barnabas.errors import BrokerError, ErrorCode


def test_codes_names_and_retriability_are_kafka_s() -> None:
    ours = {code.value: (code.name, code.retriable) for code in ErrorCode}
    assert ours == {code.value: (code.name.upper(), code.retriable) for code in KioErrorCode}


def test_every_code_has_a_meaning_of_its_own() -> None:
    meanings = [code.meaning for code in ErrorCode]
    assert len(set(meanings)) == len(ErrorCode)
    assert all(meaning and not meaning.endswith(".") for meaning in meanings)


def test_a_refusal_names_its_code_and_message() -> None:
    assert str(BrokerError(ErrorCode.NOT_COORDINATOR)) == "NOT_COORDINATOR"
    refusal = BrokerError(ErrorCode.INVALID_CONFIG, "retention.ms=soon is no number")
    assert str(refusal) == "INVALID_CONFIG: retention.ms=soon is no number"
    assert (refusal.code, refusal.message) == (40, "retention.ms=soon is no number")


def test_a_message_fits_an_answer_whatever_it_quotes() -> None:
    refusal = BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, "no topic may be called " + "☃" * 40_000)
    assert refusal.message is not None
    assert len(refusal.message) == BrokerError.MESSAGE_LENGTH_MAX
    assert refusal.message.endswith("☃…")
    assert len(refusal.message.encode()) < 32_767
