"""What is used too late, in the wrong process or on the wrong brokers is refused with a clear text, and nothing hangs."""

from __future__ import annotations

import os
import threading

import pytest

from barnabas.testing import Broker, Cluster, KitError
from tests.support.pytest_runs import plugin

pytest_plugins = ("pytester",)
__all__ = ["plugin"]

HAS_ENDED = "the Broker has ended, with its test, its `with` block or stop"


def test_a_handle_and_what_it_gave_say_that_it_has_ended() -> None:
    with Broker() as kafka:
        clock, faults = kafka.clock, kafka.faults
    for use in (kafka.topics, kafka.kill, lambda: clock.advance(1), lambda: faults.on("Fetch").drop()):
        with pytest.raises(KitError, match=HAS_ENDED):
            use()
    with pytest.raises(KitError, match=f"bootstrap_servers: {HAS_ENDED}"):
        _ = kafka.bootstrap_servers
    with kafka, pytest.raises(KitError, match="this clock is of brokers that have ended"):
        clock.advance(1)


def test_time_passes_although_brokers_are_down() -> None:
    with Broker() as kafka:
        kafka.kill()
        kafka.clock.advance(hours=1)
        kafka.restart()
        kafka.pause()
        kafka.clock.advance(hours=1)
        kafka.resume()
        assert kafka.clock.ahead.total_seconds() == 7200


def test_jumps_of_several_threads_add_up() -> None:
    with Broker() as kafka:
        threads = [threading.Thread(target=kafka.clock.advance, kwargs={"minutes": 1}) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert kafka.clock.ahead.total_seconds() == 240


def test_time_passes_while_a_broker_is_killed() -> None:
    with Cluster(3, topics={"orders": 3}) as kafka:
        thread = threading.Thread(target=kafka.clock.advance, kwargs={"days": 30})
        thread.start()
        kafka.kill(2)
        thread.join()
        kafka.restart(2)
        assert kafka.clock.ahead.days == 30


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # the fork of the application
def test_a_forked_child_moves_no_clock() -> None:
    with Broker() as kafka:
        clock = kafka.clock
        child = os.fork()
        if child == 0:
            try:
                clock.advance(hours=1)
            except KitError as error:
                os._exit(0 if "cannot be used in its forked child" in str(error) else 2)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert clock.ahead.total_seconds() == 0


def test_shared_brokers_keep_their_time_and_their_release(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from barnabas.testing import KitError

        @pytest.mark.kafka(isolation="namespace")
        def test_time(kafka, kafka_clock):
            with pytest.raises(KitError, match="time cannot be moved back"):
                kafka_clock.advance(hours=1)

        @pytest.mark.kafka(isolation="namespace", as_version="3.6")
        def test_release(kafka):
            pass

        def test_own(kafka_clock):
            kafka_clock.advance(hours=1)

        def test_next(kafka_clock):
            assert kafka_clock.ahead.total_seconds() == 0
        """
    )
    run = pytester.runpytest_inprocess()
    run.assert_outcomes(passed=3, errors=1)
    run.stdout.fnmatch_lines(["*as_version belongs to new brokers, and isolation 'namespace' shares those*"])


def test_a_wrong_release_ends_the_run_before_its_first_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.kafka(as_version="3.66")
        def test_it(kafka):
            pass
        """
    )
    run = pytester.runpytest_inprocess()
    assert run.ret != 0
    run.stderr.fnmatch_lines(["*@pytest.mark.kafka: as_version: unknown release of Kafka '3.66'; did you mean '3.6'?*"])


def test_a_client_that_outlives_its_test_is_refused_at_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        kept = []

        def test_first(kafka, kafka_topic, kafka_producer, kafka_consumer):
            kept.extend((kafka, kafka_producer, kafka_consumer))

        def test_second():
            kafka, producer, consumer = kept
            with pytest.raises(Exception, match="the Broker has ended"):
                kafka.create_topic("orders")
            with pytest.raises(Exception, match="the producer is closed"):
                producer.send("orders", b"x")
            with pytest.raises(Exception, match="the consumer is closed"):
                consumer.take(1)
        """
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=2)
