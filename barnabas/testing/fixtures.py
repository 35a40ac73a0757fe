"""Pytest fixtures: the session's brokers, a fresh Kafka for each test, and cleanup. Everything that a session starts ends with its fixtures;
every teardown wait has a deadline. docs/adr/0004-test-kit.md has the reasons.
"""

from __future__ import annotations

import itertools
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pytest

import barnabas.testing.history.reporting  # noqa: F401  # for the plugin, before brokers run: their threads import, too
from barnabas.runtime.randomness import SystemRng
from barnabas.testing.cluster import Broker, Cluster
from barnabas.testing.errors import KitError, LeakedClientWarning, unknown
from barnabas.testing.namespace import Namespace, leaked_clients
from barnabas.testing.pool import ClusterPool
from barnabas.testing.ports import checked_admin_port
from barnabas.testing.stash import AUDITED, DISTURBANCE, DISTURBED, FAILED

ISOLATIONS: Final = ("cluster", "namespace", "process")
# A client that was closed at the end of a test has disconnected by then, also on a busy machine.
LEAK_GRACE_S: Final = 1.0
NAME_CHARS_MAX: Final = 120  # of a test's name within the name of a topic or group

SHARED_TIME: Final = (
    "kafka.clock: other tests use these brokers, too, and time cannot be moved back: "
    "give the test brokers of its own, @pytest.mark.kafka(isolation='cluster')"
)

SHARED_BROKERS: Final = (
    "kafka.stop(): other tests use these brokers, too: stop or kill one by kafka.stop_broker(1) or kafka.kill(1), "
    "or give the test brokers of its own, @pytest.mark.kafka(isolation='cluster')"
)

_SESSION = pytest.StashKey["KafkaSession"]()


class Wanted(NamedTuple):
    """The options of the marker `kafka`, with their defaults."""

    brokers: int = 1
    config: Mapping[str, object] = MappingProxyType({})
    node_config: Mapping[int, Mapping[str, object]] = MappingProxyType({})
    topics: Mapping[str, int] = MappingProxyType({})
    internal_topics: bool = True
    isolation: str = ""
    as_version: str | None = None
    audit: bool = True
    faults: str | None = None
    admin_port: int | None = None
    security_protocol: str = "PLAINTEXT"
    log_dirs: int = 1

    def make(self, config: Mapping[str, object], **more: Any) -> Cluster:
        """A cluster that is not started; `config` has settings below its own."""
        return make_cluster(
            self.brokers,
            {**config, **self.config},
            node_config=self.node_config,
            internal_topics=self.internal_topics,
            as_version=self.as_version,
            security_protocol=self.security_protocol,
            log_dirs=self.log_dirs,
            **more,
        )


def make_cluster(
    brokers: int,
    config: Mapping[str, object],
    *,
    node_config: Mapping[int, Mapping[str, object]] | None = None,
    internal_topics: bool = True,
    **options: Any,
) -> Cluster:
    """A cluster that is not started; a `Broker` if it has one broker."""
    if brokers == 1:
        return Broker(config={**config, **(node_config or {}).get(1, {})}, **options)
    return Cluster(brokers, config=config, node_config=node_config, internal_topics=internal_topics, **options)


def session_of(config: pytest.Config) -> KafkaSession:
    if _SESSION not in config.stash:
        session = config.stash[_SESSION] = KafkaSession(config)
        config.add_cleanup(session.close)
    return config.stash[_SESSION]


def check_ini(config: pytest.Config) -> None:
    """Raises pytest.UsageError with the right word for a wrong value of an ini key."""
    try:
        Cluster(1, config=session_of(config).config)
    except KitError as error:
        raise pytest.UsageError(f"kafka_config: {error}") from None


def check_marker(marker: pytest.Mark, where: str, folder: Path) -> None:
    """Raises pytest.UsageError with the right word for a wrong option of the marker, or a wrong file of faults. `folder`: of the test's file."""
    try:
        if marker.args:
            raise KitError(f"write options by name, for example @pytest.mark.kafka(brokers={marker.args[0]!r})")
        for name, value in marker.kwargs.items():
            if name not in Wanted._fields:
                raise KitError(unknown("option", name, Wanted._fields))
            if name == "isolation" and value not in ISOLATIONS:
                raise KitError(unknown("isolation", value, ISOLATIONS))
            if name == "audit" and not isinstance(value, bool):
                raise KitError(f"audit={value!r}: True or False")
        options = dict(marker.kwargs)
        faults = options.pop("faults", None)
        Cluster(**{name: value for name, value in options.items() if name not in ("isolation", "audit")})
        if faults is not None:
            from barnabas.testing.faults.document import read

            read(folder / str(faults))
    except KitError as error:
        raise pytest.UsageError(f"{where}: @pytest.mark.kafka: {error}") from None


class KafkaSession:
    """Settings, shared brokers and spare clusters of one pytest session."""

    def __init__(self, config: pytest.Config) -> None:
        self.bootstrap: str | None = config.getoption("--kafka-bootstrap")
        self.config: dict[str, object] = dict(_assignment(each) for each in config.getini("kafka_config"))
        self.isolation: str = config.getini("kafka_isolation") or ("namespace" if self.bootstrap else "cluster")
        if self.isolation not in ISOLATIONS:
            raise pytest.UsageError(f"kafka_isolation: {unknown('isolation', self.isolation, ISOLATIONS)}")
        self.admin_port = _admin_port(config)
        # For the report of a failed test, and for traces.
        Cluster._history_level = "last" if config.getoption("--kafka-trace") == "off" else "all"
        self.run_id = SystemRng().uuid().hex()[:8]  # tells the names of this run from those of others on a shared Kafka
        self.numbers = itertools.count(1)
        self._spares = ClusterPool()

    def shared(self, brokers: int) -> Iterator[Cluster]:
        """The body of a session fixture: brokers in threads, or the running Kafka."""
        yield from self.running(None) if self.bootstrap else self.started(brokers)

    def started(self, brokers: int, config: Mapping[str, object] | None = None, **options: Any) -> Iterator[Any]:
        """The body of a session fixture: brokers with the settings of the ini file and those of `config`."""
        with make_cluster(brokers, {**self.config, **(config or {})}, **options) as kafka:
            yield kafka

    def running(self, bootstrap_servers: str | None) -> Iterator[Cluster]:
        """The body of a session fixture: a running Kafka."""
        found = bootstrap_servers or self.bootstrap
        if not found:
            pytest.fail("this test needs a running Kafka: give --kafka-bootstrap=HOST:PORT", pytrace=False)
        with Cluster.connect(found) as kafka:
            yield kafka

    def take(self, wanted: Wanted) -> Cluster:
        """A new running cluster: a spare one if its shape fits."""
        if (
            wanted.brokers == 1 or not wanted.internal_topics
        ):  # a cluster keeps these topics once it has made them, so it cannot be a spare one
            return wanted.make(self.config, topics=wanted.topics).start()
        shape = wanted._replace(topics={}, isolation="", audit=True, faults=None, admin_port=None)
        kafka = self._spares.take(repr(shape), lambda: wanted.make(self.config))
        try:
            for name, partitions in wanted.topics.items():
                kafka.create_topic(name, partitions)
        except BaseException:
            kafka.stop()
            raise
        return kafka

    def end(self, kafka: Cluster, *, failed: bool) -> None:
        """Ends the cluster of a test, or makes it as new for another one. The report of a failed test may still read its cluster."""
        if failed:
            kafka.stop()
        else:
            self._spares.give_back(kafka)

    def close(self) -> None:
        Cluster._history_level = ""
        self._spares.close()


def _admin_port(config: pytest.Config) -> int | None:
    """The port of --kafka-admin-port, or of the ini file."""
    given, text = config.getoption("--kafka-admin-port"), config.getini("kafka_admin_port").strip()
    try:
        if given is None and text:
            given = int(text) if text.isascii() and text.isdigit() else text
        return None if given is None else checked_admin_port(given)
    except KitError as error:
        raise pytest.UsageError(f"kafka_admin_port: {error}") from None


def _assignment(line: str) -> tuple[str, str]:
    key, equals, value = line.partition("=")
    if not equals or not key.strip():
        raise pytest.UsageError(f"kafka_config: {line!r}: write key=value, for example num.partitions=3")
    return key.strip(), value.strip()


# -- one test


def for_test(request: pytest.FixtureRequest, process_fixture: str | None = None) -> Iterator[Cluster]:
    """The body of the fixture `kafka`, and of those of `factories.kafka`, which names a session fixture."""
    session = session_of(request.config)
    wanted = _wanted(request, session)
    if process_fixture is not None or wanted.isolation == "namespace":
        yield from _in_namespace(request, session, wanted, process_fixture)
        return
    if session.bootstrap:
        pytest.fail(
            f"isolation '{wanted.isolation}' starts brokers, and --kafka-bootstrap names a running Kafka: "
            "leave one of them out",
            pytrace=False,
        )
    if wanted.isolation == "process":
        kafka = wanted.make(session.config, mode="process", topics=wanted.topics).start()
    else:
        kafka = session.take(wanted)
    try:
        _prepare(request, kafka, wanted)
        with _disturbed(request, kafka, wanted):
            yield kafka
        _end_faults(request, kafka)
    finally:
        _restore_levels(kafka)
        try:
            _name_leaked_clients(request, kafka, set())
        finally:
            session.end(kafka, failed=request.node.stash.get(FAILED, False))


def _wanted(request: pytest.FixtureRequest, session: KafkaSession) -> Wanted:
    options: dict[str, Any] = {"isolation": session.isolation, "admin_port": session.admin_port}
    for marker in reversed(list(request.node.iter_markers("kafka"))):  # the nearest one last
        options |= {name: value for name, value in marker.kwargs.items() if value is not None}
    return Wanted(**options)


def _in_namespace(
    request: pytest.FixtureRequest, session: KafkaSession, wanted: Wanted, fixture: str | None
) -> Iterator[Cluster]:
    for option in ("config", "node_config", "internal_topics", "as_version", "security_protocol", "log_dirs"):
        if getattr(wanted, option) != getattr(Wanted(), option):
            pytest.fail(
                f"{option} belongs to new brokers, and isolation 'namespace' shares those of the session", pytrace=False
            )
    kafka: Cluster = request.getfixturevalue(fixture or ("kafka_broker" if wanted.brokers == 1 else "kafka_cluster"))
    if len(kafka.brokers) < wanted.brokers:
        pytest.skip(f"this test needs {wanted.brokers} brokers, and this Kafka has {len(kafka.brokers)}")
    namespace = Namespace(kafka)
    namespace.open()
    kafka.stop_refusal = SHARED_BROKERS
    if kafka.mode != "remote":
        kafka.clock.refusal = SHARED_TIME
    try:
        for name, partitions in wanted.topics.items():
            kafka.create_topic(name, partitions)
        _prepare(request, kafka, wanted)
        with _disturbed(request, kafka, wanted):
            yield kafka
        _end_faults(request, kafka)
    finally:
        kafka.stop_refusal = ""
        _restore_levels(kafka)
        try:
            if kafka.mode != "remote":
                _name_leaked_clients(request, kafka, namespace.clients)
                kafka.clock.refusal = ""
                kafka.wait(kafka.close_admin_port())
        finally:
            namespace.close(f"-{session.run_id}-")


def _prepare(request: pytest.FixtureRequest, kafka: Cluster, wanted: Wanted) -> None:
    """The random choices of a test's faults follow from the seed of the run and the name of the test. Its marker may want faults."""
    kafka.seed = f"{request.getfixturevalue('kafka_seed')}/{request.node.nodeid}"
    if wanted.admin_port is not None:
        kafka.wait(kafka.open_admin_port(wanted.admin_port))
    if wanted.faults is not None:
        kafka.faults.load(request.path.parent / wanted.faults)


@contextmanager
def _disturbed(request: pytest.FixtureRequest, kafka: Cluster, wanted: Wanted) -> Iterator[None]:
    """Tells the audit that it can disturb this test, and disturbs it in the run for that."""
    if not wanted.audit or kafka.mode == "remote":
        yield
        return
    stash = request.node.stash
    stash[AUDITED] = True
    disturbance = stash.get(DISTURBANCE, request.config.getoption("--kafka-disturb"))
    if not disturbance:
        yield
        return
    from barnabas.testing.audit.disturbances import Auditor

    auditor = Auditor(disturbance, kafka.core())
    stash[DISTURBED] = auditor.done, ""
    kafka.wait(auditor.begin())
    try:
        yield
    finally:
        if kafka.runs:
            kafka.wait(auditor.end(), factor=3)
        stash[DISTURBED] = auditor.done, auditor.problem
        told = "\n".join([*auditor.done, auditor.problem]).strip() or "the test gave no moment for it"
        request.node.add_report_section("teardown", "kafka", f"{disturbance}: {told}")


def _end_faults(request: pytest.FixtureRequest, kafka: Cluster) -> None:
    """Removes a test's faults; fails a passed test if a strict one hit nothing."""
    if kafka.mode == "remote" or not kafka.runs:
        return
    wrong = ""
    try:
        if not request.node.stash.get(FAILED, False):
            kafka.wait(kafka.core().verified())
    except KitError as error:
        wrong = str(error)
    finally:
        kafka.faults.clear()
    if wrong:
        pytest.fail(wrong, pytrace=False)


def _restore_levels(kafka: Cluster) -> None:
    """Nodes in threads share the loggers of this process with those of the next test."""
    if kafka.mode == "thread":
        from barnabas.broker.handlers.logger_levels import restore_levels

        restore_levels()


def _name_leaked_clients(request: pytest.FixtureRequest, kafka: Cluster, known: set[str]) -> None:
    """Warns about connected clients; not for a failed test, whose traceback keeps its clients alive."""
    if not kafka.runs:
        return
    leaked = kafka.wait(leaked_clients(kafka.core(), LEAK_GRACE_S, known))
    if leaked and not request.node.stash.get(FAILED, False):
        warnings.warn(
            LeakedClientWarning(
                f"{request.node.nodeid} has left clients connected: {'; '.join(leaked)}. Close them before the test ends"
            ),
            stacklevel=1,
        )


# -- names


def client_id(request: pytest.FixtureRequest) -> str:
    return _cleaned(request.node.name)


def unique_name(request: pytest.FixtureRequest, what: str) -> str:
    """A legal name for a topic, group or transactional id, unique to this test and run."""
    session = session_of(request.config)
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    return f"{_cleaned(request.node.name)}-{what}-{session.run_id}-{worker}-{next(session.numbers)}"


def _cleaned(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9.-]+", "-", text).strip("-.")[:NAME_CHARS_MAX] or "test"


def topic_factory(kafka: Cluster, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Makes topics. In a Kafka of others names get a suffix, so that runs do not meet; else they are used as they are."""

    def make(name: str | None = None, partitions: int = 1, **options: Any) -> str:
        if name is None:
            name = unique_name(request, "topic")
        elif kafka.mode == "remote":
            name = f"{name}-{unique_name(request, 'topic')}"
        return kafka.create_topic(name, partitions, **options)

    return make
