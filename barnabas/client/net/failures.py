"""Connection failures of a client, as one error. A rejected login is raised at once, as in Kafka's clients."""

from __future__ import annotations

from collections.abc import Iterable

from barnabas.client.errors import AuthenticationFailed, BrokerUnreachable, KafkaError, NotKafka
from barnabas.client.net.transport import Connection


def first_error(connections: Iterable[Connection]) -> KafkaError | None:
    return next((each.error for each in connections if each.error is not None), None)


def refused_login(connections: Iterable[Connection]) -> AuthenticationFailed | None:
    return next((each.error for each in connections if isinstance(each.error, AuthenticationFailed)), None)


def check_login(connections: Iterable[Connection]) -> None:
    """Raises AuthenticationFailed if no connection is ready and a broker rejected this client."""
    each = list(connections)
    refused = refused_login(each)
    if refused is not None and not any(connection.ready for connection in each):
        raise AuthenticationFailed(refused.message, code=refused.code, broker=refused.broker) from refused


def unreachable_broker(cause: KafkaError, node_id: int) -> BrokerUnreachable:
    error = BrokerUnreachable(cause.message, broker=node_id)
    error.__cause__ = cause
    return error


def hopeless(connections: Iterable[Connection], bootstrap: list[tuple[str, int]]) -> KafkaError | None:
    """Why a start cannot succeed: a rejected login, or no broker at any address; else None."""
    each = list(connections)
    refused = refused_login(each)
    if refused is not None:
        return refused
    not_kafka = [c.error for c in each if isinstance(c.error, NotKafka)]
    if len(not_kafka) != len(bootstrap):
        return None
    text = NotKafka("; ".join(e.message for e in not_kafka))
    text.__cause__ = not_kafka[0]
    return text


def all_failed(connections: Iterable[Connection], bootstrap: list[tuple[str, int]]) -> bool:
    return sum(each.error is not None for each in connections) >= len(bootstrap)


def no_answer(
    connections: Iterable[Connection], bootstrap: list[tuple[str, int]], error: KafkaError | None
) -> BrokerUnreachable:
    each = list(connections)
    failed = first_error(each)
    cause = failed or error
    why = cause.message if cause is not None else "timed out"
    if failed is None and any(c.negotiating for c in each):
        why = "it accepts connections and does not answer; is it a Kafka broker?"
    addresses = ", ".join(f"{host}:{port}" for host, port in bootstrap)
    silent = BrokerUnreachable(
        f"no Kafka broker answers at {addresses}: {why.removeprefix(f'cannot connect to {addresses}: ')}"
    )
    silent.__cause__ = cause
    return silent
