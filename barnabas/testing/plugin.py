"""The pytest plugin: options, the marker `kafka`, and fixtures; docs/testing/reference.md lists them. Their work is in `fixtures.py`, imported on
first use, so tests without Kafka cost nothing. PYTEST_DONT_REWRITE: else pytest warns if something has imported it before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING, Any

import pytest


class _Plainly:
    """Finds the modules of this package before pytest does, which would parse each one to rewrite its assertions.

    pytest does so with all modules of a package that brings a plugin: seconds of CPU in each run without a cache.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, path, target) if name.startswith("barnabas.") else None


sys.meta_path.insert(0, _Plainly)

from barnabas.testing.stash import FAILED, SEED  # noqa: E402  # after the finder

if TYPE_CHECKING:
    from barnabas.testing import fixtures
    from barnabas.testing.clients import KitAdmin, KitConsumer, KitProducer
    from barnabas.testing.clock import KafkaClock
    from barnabas.testing.cluster import Broker, Cluster
    from barnabas.testing.faults.handles import Faults
    from barnabas.testing.history.handles import History
else:

    class _Fixtures:
        """The module with the work, which is imported on the first use."""

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):  # pytest looks for marks of fixtures
                raise AttributeError(name)
            return getattr(import_module("barnabas.testing.fixtures"), name)

    fixtures = _Fixtures()

MARKER = (
    "kafka(brokers=1, config=None, node_config=None, topics=None, internal_topics=True, isolation=None, as_version=None, audit=True, "
    "faults=None, admin_port=None, security_protocol='PLAINTEXT', log_dirs=1): the "
    "Kafka that the fixture `kafka` gives this test: number of brokers, broker settings, settings of single brokers by id, topics to "
    "create (name to partitions), False for several brokers that begin without the topics of offsets and of transactions, and "
    "'cluster' (new brokers, the default), 'namespace' (the session's brokers) or 'process' (new broker processes); '3.6': brokers that "
    "serve clients as that release of Kafka does; audit=False: --kafka-audit runs it once; a file of faults, beside the test's own "
    "file; the port for faults over HTTP, 0 for a free one; what the listener for clients speaks; number of log directories of each "
    "broker"
)
SEED_MAX = 2**32
PATIENCE_MAX = 100


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options and ini keys."""
    group = parser.getgroup("kafka", "Kafka in tests (barnabas)")
    group.addoption(
        "--kafka-bootstrap",
        metavar="HOST:PORT,…",
        help="use this running Kafka instead of starting brokers; tests that kill or restart brokers cannot use it",
    )
    group.addoption(
        "--kafka-seed",
        type=int,
        metavar="N",
        help="seed of the random choices of faults, and value of the fixture kafka_seed [default: a new one for each run]",
    )
    group.addoption(
        "--kafka-audit",
        action="store_true",
        help="run each test that uses `kafka` again while Kafka is disturbed, and show a table of the tests that then fail",
    )
    group.addoption(
        "--kafka-audit-strict",
        action="store_true",
        help="as --kafka-audit; the run fails if a test fails in it",
    )
    group.addoption(
        "--kafka-disturb",
        metavar="NAME",
        default="",
        help="run tests once, with this disturbance of the audit: leader, coordinator, rebalance or redelivery",
    )
    group.addoption(
        "--kafka-admin-port",
        type=int,
        metavar="PORT",
        help="open the admin port (faults over HTTP, on 127.0.0.1) for every Kafka of a test; 0 takes a free port",
    )
    group.addoption(
        "--kafka-patience",
        type=float,
        metavar="N",
        help="make every deadline of the test kit N times as long, for a busy machine",
    )
    group.addoption(
        "--kafka-trace",
        choices=("on", "off", "retain-on-failure"),
        default="off",
        help="write what the brokers acknowledged and delivered in each test to kafka-traces/: always, never, or if the test fails",
    )
    parser.addini("kafka_admin_port", "as --kafka-admin-port", default="")
    parser.addini("kafka_config", "broker settings for every test, one key=value a line", type="linelist", default=[])
    parser.addini("kafka_isolation", "what a test gets: cluster, namespace or process", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker and, if it is wanted, the audit."""
    config.addinivalue_line("markers", MARKER)
    factor = config.getoption("--kafka-patience")
    if factor is not None:
        from barnabas.testing.errors import set_patience

        if not 0 < factor <= PATIENCE_MAX:
            raise pytest.UsageError(f"--kafka-patience={factor:g}: write a number above 0, at most {PATIENCE_MAX}")
        set_patience(factor)
    if any(config.getoption(each) for each in ("--kafka-audit", "--kafka-audit-strict", "--kafka-disturb")):
        from barnabas.testing.audit.runs import begin_audit

        begin_audit(config)


def pytest_report_header(config: pytest.Config) -> str:
    """The seed, for a run with the same random choices."""
    return f"kafka: --kafka-seed={_seed(config)}"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """xdist: gives every worker the same seed."""
    node.workerinput["kafka_seed"] = _seed(node.config)


def _seed(config: pytest.Config) -> int:
    """--kafka-seed, or one that is drawn once for each run."""
    given: int | None = config.getoption("--kafka-seed")
    if given is not None:
        return given
    workerinput: dict[str, int] = getattr(config, "workerinput", {})
    if "kafka_seed" not in workerinput and SEED not in config.stash:
        import random

        config.stash[SEED] = random.SystemRandom().randrange(SEED_MAX)
    return workerinput["kafka_seed"] if "kafka_seed" in workerinput else config.stash[SEED]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Checks the ini keys and the markers of all tests before the first one runs."""
    if items and (config.getini("kafka_config") or config.getini("kafka_isolation")):
        fixtures.check_ini(config)
    for item in items:
        for marker in item.iter_markers("kafka"):
            fixtures.check_marker(marker, item.nodeid, item.path.parent)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows a wrong use of the kit where the test has it; notes whether the test itself has failed, and tells what its Kafka did."""
    if call.excinfo is not None and not item.config.option.fulltrace:
        _leave_out_the_kit(call.excinfo, str(item.path))
    report = yield
    if call.when == "call":
        item.stash[FAILED] = report.failed
    if "barnabas.testing.kit_thread" in sys.modules:
        from barnabas.testing.history.reporting import add_to_report

        add_to_report(item, report, _seed(item.config))
    return report


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Names the records that are missing or there twice, where a test with the kit compares lists of values."""
    kit = "barnabas.testing.history.reporting" in sys.modules
    if not (kit and op == "==" and isinstance(left, list) and isinstance(right, list) and left and right):
        return None
    if not all(isinstance(each, bytes) for each in (*left, *right)):
        return None
    from barnabas.testing.history.reporting import assertion_lines

    return assertion_lines(left, right)


def _leave_out_the_kit(found: pytest.ExceptionInfo[BaseException], test: str) -> None:
    """Ends the traceback of an error of the kit at the test's call; `--full-trace` shows the rest."""
    kit = sys.modules.get("barnabas.testing.errors")
    if kit is None or not (isinstance(found.value, kit.KitError) or str(found.traceback[-1].path) == kit.__file__):
        return
    own, last, entry = os.path.dirname(__file__) + os.sep, None, found.value.__traceback__
    while entry is not None:
        path = entry.tb_frame.f_code.co_filename
        if last is not None and path.startswith(own):
            last.tb_next = None  # pytest follows these links, whatever ExceptionInfo.traceback is set to
            return
        if path == test or last is not None:
            last = entry
        entry = entry.tb_next


# -- a Kafka for the session


@pytest.fixture(scope="session")
def kafka_seed(pytestconfig: pytest.Config) -> int:
    """A seed for the random choices of tests: --kafka-seed, or a new one for each run; the same in all workers."""
    return _seed(pytestconfig)


@pytest.fixture(scope="session")
def kafka_cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """Three brokers for the session, or the Kafka of --kafka-bootstrap. Tests share them; `kafka` is a test's own."""
    yield from fixtures.session_of(pytestconfig).shared(brokers=3)


@pytest.fixture(scope="session")
def kafka_broker(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """One broker for the session, or the Kafka of --kafka-bootstrap."""
    yield from fixtures.session_of(pytestconfig).shared(brokers=1)


@pytest.fixture(scope="session")
def kafka_proc(pytestconfig: pytest.Config) -> Iterator[Broker]:
    """One broker process for the session, with files in a temporary directory."""
    yield from fixtures.session_of(pytestconfig).started(1, mode="process")


@pytest.fixture(scope="session")
def kafka_noproc(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """The running Kafka that --kafka-bootstrap names."""
    yield from fixtures.session_of(pytestconfig).running(None)


# -- a Kafka for one test


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """An empty Kafka for this test. The marker `kafka` sets its shape."""
    yield from fixtures.for_test(request)


@pytest.fixture
def kafka_faults(kafka: Cluster) -> Faults:
    """Faults on the wire: `kafka_faults.on("EndTxn").error("COORDINATOR_NOT_AVAILABLE")`. One that hits nothing fails the test."""
    return kafka.faults


@pytest.fixture
def kafka_history(kafka: Cluster) -> History:
    """What the brokers acknowledge and deliver during this test: `kafka_history.check()`, `kafka_history.events`."""
    return kafka.history


@pytest.fixture
def kafka_clock(kafka: Cluster) -> KafkaClock:
    """The time of the brokers of `kafka`: `kafka_clock.advance(hours=25)`."""
    return kafka.clock


@pytest.fixture
def kafka_admin_url(kafka: Cluster) -> str:
    """Address of the admin port of `kafka`, http://127.0.0.1:PORT, for faults over HTTP; opens it if it is off."""
    return kafka.wait(kafka.open_admin_port(0))


@pytest.fixture
def kafka_bootstrap_servers(kafka: Cluster) -> str:
    """HOST:PORT of each broker of `kafka`, separated by commas."""
    return kafka.bootstrap_servers


@pytest.fixture
def kafka_topics(kafka: Cluster, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Creates topics: `kafka_topics("orders", partitions=3, config={"cleanup.policy": "compact"})` returns the name to use."""
    return fixtures.topic_factory(kafka, request)


@pytest.fixture
def kafka_topic(kafka: Cluster, request: pytest.FixtureRequest) -> str:
    """The name of a new topic with one partition."""
    return kafka.create_topic(fixtures.unique_name(request, "topic"))


@pytest.fixture
def kafka_group_id(request: pytest.FixtureRequest) -> str:
    """A group id that no other test uses."""
    return fixtures.unique_name(request, "group")


@pytest.fixture
def kafka_transactional_id(request: pytest.FixtureRequest) -> str:
    """A transactional id that no other test uses."""
    return fixtures.unique_name(request, "txn")


# -- clients


@pytest.fixture
def kafka_client_config(kafka: Cluster, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings of librdkafka's clients (confluent-kafka): a new dict, to which a test adds its own."""
    security = kafka.client_security(librdkafka=True)
    return {"bootstrap.servers": kafka.bootstrap_servers, "client.id": fixtures.client_id(request), **security}


@pytest.fixture
def kafka_aio_config(kafka: Cluster, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Arguments of aiokafka's, kafka-python's and the bundled client's classes: a new dict."""
    return {**kafka.client_settings, "client_id": fixtures.client_id(request)}


@pytest.fixture
def make_kafka_producer(kafka: Cluster, kafka_aio_config: dict[str, Any]) -> Iterator[Callable[..., KitProducer]]:
    """Makes producers of the bundled client; takes the arguments of `barnabas.client.Producer`. The end of the test closes them."""
    from barnabas.testing.clients import KitProducer, maker

    yield from maker(KitProducer, kafka, kafka_aio_config)


@pytest.fixture
def make_kafka_consumer(kafka: Cluster, kafka_aio_config: dict[str, Any]) -> Iterator[Callable[..., KitConsumer]]:
    """Makes consumers of the bundled client; takes the arguments of `barnabas.client.Consumer`. The end of the test closes them."""
    from barnabas.testing.clients import KitConsumer, maker

    yield from maker(KitConsumer, kafka, kafka_aio_config)


@pytest.fixture
def make_kafka_admin(kafka: Cluster, kafka_aio_config: dict[str, Any]) -> Iterator[Callable[..., KitAdmin]]:
    """Makes admin clients of the bundled client. The end of the test closes them."""
    from barnabas.testing.clients import KitAdmin, maker

    yield from maker(KitAdmin, kafka, kafka_aio_config)


@pytest.fixture
def kafka_producer(make_kafka_producer: Callable[..., KitProducer]) -> KitProducer:
    """A producer of the bundled client, with blocking methods, and coroutines under `.aio`."""
    return make_kafka_producer()


@pytest.fixture
def kafka_consumer(make_kafka_consumer: Callable[..., KitConsumer], kafka_group_id: str) -> KitConsumer:
    """A consumer of the bundled client in the group `kafka_group_id`, from the earliest offset, subscribed to nothing yet."""
    return make_kafka_consumer(group_id=kafka_group_id, auto_offset_reset="earliest")


@pytest.fixture
def kafka_admin(make_kafka_admin: Callable[..., KitAdmin]) -> KitAdmin:
    """An admin client of the bundled client, with blocking methods, and coroutines under `.aio`."""
    return make_kafka_admin()
