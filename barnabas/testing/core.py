"""Core: operations of a cluster as coroutines of the kit's loop; `Cluster` and its `aio` show the public ones. Kafka protocol operations use the bundled admin client; kills, pauses and
the brokers' own view go through the backend.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from barnabas.broker.coordinator.host.partitioning import partition_for
from barnabas.protocol.internal_topics import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from barnabas.runtime.network import AsyncioNetwork
from barnabas.runtime.scope import Scope
from barnabas.testing.backend import Backend, Lose, check_loss, not_possible
from barnabas.testing.errors import (
    ADMIN_CLIENT_ID,
    BrokerKilledError,
    KitError,
    KitTimeout,
    broker_names,
    checked_number,
    unknown,
)
from barnabas.testing.extension import Extension

if TYPE_CHECKING:
    from barnabas.testing.own_admin import OwnAdmin


class Starts:
    """At most one start for each broker. `ready` or the cluster's end raises its error, unless the broker was killed or restarted.

    `on_started` is awaited with the id of each broker that serves.
    """

    def __init__(self, backend: Backend, on_started: Callable[[int], Awaitable[None]]) -> None:
        self._backend = backend
        self._on_started = on_started
        self._scope = Scope("starts")
        self._tasks: dict[int, asyncio.Task[None]] = {}  # those that go on
        self._errors: dict[int, Exception] = {}  # of those that have failed
        self._changed = asyncio.Event()  # a start has ended

    async def begin(self, broker_ids: Iterable[int]) -> None:
        """Begins the starts of brokers that are down; returns when their state is "starting"."""
        for each in broker_ids:
            self._tasks[each] = self._scope.start(self._start(each), name=f"broker {each}")
        await asyncio.sleep(0)

    async def _start(self, broker_id: int) -> None:
        try:
            await self._backend.start_broker(broker_id)
            await self._on_started(broker_id)
        except BrokerKilledError:
            pass  # a test kills a broker on purpose: that is no failed start
        except Exception as error:  # the test gets it
            self._errors[broker_id] = error
        finally:
            self._tasks.pop(broker_id, None)
            self._changed.set()

    async def ready(self, broker_ids: Iterable[int]) -> None:
        """Waits until these brokers have started. Raises the first error of a start."""
        waited = list(broker_ids)
        while True:
            self.raise_failed(waited)
            if not any(each in self._tasks for each in waited):
                return
            self._changed.clear()
            await self._changed.wait()

    def raise_failed(self, broker_ids: Iterable[int]) -> None:
        """Raises the error of a start of these brokers that has failed."""
        for each in broker_ids:
            error = self._errors.pop(each, None)
            if error is not None:
                raise error

    async def cancel(self, *broker_ids: int) -> None:
        """Ends the starts of these brokers. One that does not serve yet is down when this returns."""
        tasks = [self._tasks.pop(each) for each in broker_ids if each in self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for each in broker_ids:
            self._errors.pop(each, None)
        self._changed.set()

    async def end(self) -> list[str]:
        """Ends all starts. Returns the errors that nothing has raised yet."""
        failed = [f"the start of broker {each} failed: {error}" for each, error in self._errors.items()]
        await self.cancel(*self._tasks)
        return failed


class _AdminNetwork(AsyncioNetwork):
    """Keeps the kit's admin client away from brokers that are cut off from the controller.

    Args:
        backend: has the addresses that the client uses.
        cut_off: returns the ids of the brokers that are not to be used at present.
    """

    def __init__(self, backend: Backend, cut_off: Callable[[], frozenset[int]]) -> None:
        super().__init__()
        self._cut_off = cut_off
        addresses = zip(backend.broker_ids, backend.internal_servers.split(","), strict=True)
        self._brokers = {int(address.rpartition(":")[2]): broker_id for broker_id, address in addresses}

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **options: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """As of Network."""
        if self._brokers.get(port) in self._cut_off():
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the broker is cut off by the test", f"{host}:{port}")
        return await super().connect(factory, host, port, **options)


POLL_FIRST_S: Final = 0.001
POLL_S: Final = 0.02


class Core:
    """Operations of `Cluster` and `.aio`, one at a time and in order. Every wait has a deadline, whose error names what was missing."""

    def __init__(self, backend: Backend, timeout_s: float, *, internal_topics: bool = True) -> None:
        self.backend = backend
        self.extensions: list[Extension] = []
        backend.before_start = lambda broker_id: [
            each for extension in self.extensions for each in extension.before_start(broker_id)
        ]
        backend.on_event = self._on_event
        self.timeout_s = timeout_s
        self._admin: OwnAdmin | None = None
        self._admin_is_stale = False
        self._turn = asyncio.Lock()
        self._missing = ""  # what the present call waits for
        self._starts = Starts(backend, self._on_late_start)
        self._internal_topics = internal_topics
        self.started = False
        self.created: list[str] = []  # topics that this handle has created

    def _on_event(self, broker_id: int, name: str, value: Any) -> None:
        for extension in self.extensions:
            extension.on_event(broker_id, name, value)

    # -- deadlines

    @asynccontextmanager
    async def limit(self, what: str, timeout_s: float | None = None) -> AsyncIterator[None]:
        """What is done within must end in time. Raises KitTimeout, which names `what` and what may explain it."""
        limit = self.timeout_s if timeout_s is None else timeout_s
        self._missing = ""
        try:
            async with asyncio.timeout(limit) as deadline:
                yield
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise KitTimeout(f"{what} took longer than {limit:g} s{self._why()}") from error

    def _why(self) -> str:
        """What may explain a missed deadline."""
        missing = f"missing: {self._missing}" if self._missing else ""
        down = [each for each in self.backend.broker_ids if self.backend.state(each) != "running"]
        states = ", ".join(f"broker {each} is {self.backend.state(each)}" for each in down)
        failures = "; ".join(self.backend.failures())
        explanations = [each.explain() for each in self.extensions]
        return "".join(f"; {each}" for each in (missing, states, failures, *explanations) if each)

    async def admin(self) -> OwnAdmin:
        """The kit's own admin client, connected. Raises KitError if no broker runs."""
        if not self._joined():
            states = ", ".join(f"broker {each} is {self.backend.state(each)}" for each in self.backend.broker_ids)
            raise KitError(f"no broker of this cluster runs: {states}; restart or resume one first")
        if self._admin_is_stale:
            self._admin_is_stale = False
            await self._close_admin()
        if self._admin is None:
            from barnabas.testing.own_admin import OwnAdmin  # here, because it would double the time of a first start

            network = _AdminNetwork(self.backend, self._cut_off) if self.backend.mode != "remote" else None
            servers = self.backend.internal_servers
            admin = OwnAdmin(bootstrap_servers=servers, client_id=ADMIN_CLIENT_ID, network=network)
            await admin.start()
            self._admin = admin
        return self._admin

    def on_links_changed(self) -> None:
        """Links between brokers were cut or healed: the next use of the admin client connects to those that reach each other."""
        self._admin_is_stale = True

    async def _close_admin(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.stop()

    # -- brokers

    def _any_running(self) -> int | None:
        return next(iter(self._joined()), None)

    def running(self) -> list[int]:
        """Ids of the brokers that run and are not paused."""
        return [each for each in self.backend.broker_ids if self.backend.state(each) == "running"]

    def _joined(self) -> list[int]:
        """Those of them that are not cut off: they know what the controller knows."""
        cut_off = self._cut_off()
        return [each for each in self.running() if each not in cut_off]

    def _cut_off(self) -> frozenset[int]:
        return frozenset[int]().union(*(each.cut_off() for each in self.extensions))

    def check_broker(self, broker_id: object) -> int:
        """Returns the id of a broker; None is the only one. Raises KitError."""
        known = self.backend.broker_ids
        if broker_id is None and len(known) == 1:
            return known[0]
        if isinstance(broker_id, bool) or not isinstance(broker_id, int) or broker_id not in known:
            raise KitError(f"broker {broker_id!r} is unknown; this cluster has {broker_names(known)}")
        return broker_id

    def own(self, what: str) -> None:
        """Raises NotPossible, which names `what`, if the brokers were started elsewhere."""
        if self.backend.mode == "remote":
            raise not_possible(what, "remote")

    # -- waiting

    async def _until(self, reached: Callable[[], Awaitable[bool]], what: str) -> None:
        """Asks until it is so; the caller's deadline limits it."""
        self._missing, pause_s = what, POLL_FIRST_S
        while not await reached():
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_S)
        self._missing = ""

    @asynccontextmanager
    async def turn(self, what: str, factor: int = 1) -> AsyncIterator[None]:
        """For an extension: its calls run one at a time with those of this class, with the deadline of a call times `factor`."""
        async with self._turn, self.limit(what, self.timeout_s * factor):
            yield

    # -- start and stop

    async def start(self, topics: Mapping[str, int], *, wait: bool = True) -> None:
        """Starts the brokers and creates topics, name to number of partitions. Without `wait` it only begins the starts."""
        if not wait:
            self.own("start(wait=False)")
            if topics:
                raise KitError("start(wait=False) creates no topics: call create_topic() when the brokers are ready")
            await self._starts.begin(self.backend.broker_ids)
            self.started = True
            return
        try:
            async with self.limit("the start of the cluster"):
                await self.backend.start()
                if self._internal_topics and len(self.backend.broker_ids) > 1 and self.backend.mode != "remote":
                    await self._create_internal_topics()
            self.started = True
            for name, partitions in topics.items():
                await self.create_topic(name, partitions)
        except BaseException:
            await self.stop()
            raise

    async def _create_internal_topics(self) -> None:
        """While all brokers run, so that each leads some of the partitions."""
        await self._until(lambda: self._listed_everywhere(*self.backend.broker_ids), "every broker knows the others")
        await self.backend.command(self.backend.broker_ids[0], "ensure_internal_topics", {})
        await self._until(self._all_in_sync, "the topics of the coordinators are in sync")

    async def stop(self) -> list[str]:
        """Returns a sentence for each unexpected exit."""
        self.started = False
        failures: list[str] = []
        try:
            failures += await self._starts.end()
            await self._close_admin()
        finally:
            await self.backend.stop()
        return failures + self.backend.failures()

    async def wait_until_ready(self, *broker_ids: int) -> None:
        """Returns when starting brokers serve and every broker knows them; without ids all that are not down.

        Raises KitError, KitTimeout.
        """
        self.own("wait_until_ready")
        checked = [self.check_broker(each) for each in broker_ids] or self.backend.broker_ids
        self._starts.raise_failed(checked)
        if not broker_ids:
            checked = [each for each in checked if self.backend.state(each) != "down"]
        async with self.limit(f"the start of {broker_names(checked)}"):
            self._missing = f"{broker_names(checked)} ready"
            self._check_start(checked)
            await self._starts.ready(checked)
            self._check_start(checked)
            await self._until(lambda: self._listed_everywhere(*checked), f"every broker knows {broker_names(checked)}")

    def _check_start(self, broker_ids: list[int]) -> None:
        for each in broker_ids:
            if self.backend.state(each) in ("down", "paused"):
                first = "restart it" if self.backend.state(each) == "down" else "resume it"
                raise KitError(f"broker {each} is {self.backend.state(each)}, so it does not get ready: {first} first")

    # -- topics

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        config: Mapping[str, object] | None = None,
    ) -> str:
        """Creates a topic and returns its name when every broker knows it and its replicas are in sync.

        Args:
            replication_factor: None takes the brokers' default: 3, or the number of brokers if that is less.
            config: Kafka's topic settings, for example {"cleanup.policy": "compact"}.
        """
        checked_number("partitions", partitions, 1)
        if replication_factor is not None:
            checked_number("replication_factor", replication_factor, 1)
        if config is not None and not isinstance(config, Mapping):
            raise KitError(f"config={config!r}: write a dict of Kafka's settings, for example {{'retention.ms': 1000}}")
        settings = {
            key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in (config or {}).items()
        }
        self._check_topic_config(settings)
        async with self._turn, self.limit(f"the creation of topic '{name}'"):
            from barnabas.client import KafkaError, NewTopic
            from barnabas.client.errors import check_topic_name
            from barnabas.errors import ErrorCode

            admin = await self.admin()
            existed = False
            try:
                check_topic_name(name)
                existed = bool(await self._known(self._any_running(), name))
                wanted = [NewTopic(name, partitions, replication_factor or -1, settings)]
                await self._while_one_runs(admin.create_topics(wanted), f"topic '{name}' was not created")
            except KafkaError as error:
                # A controller that stopped may have created it without a response; then the next one knows it.
                if existed or error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise KitError(f"topic '{name}' was not created: {error}") from error
            self.created.append(name)
            reached = self._until(lambda: self._in_sync(name, partitions), f"topic '{name}' is in sync")
            await self._while_one_runs(reached, f"topic '{name}' has no leader")
        return name

    async def _while_one_runs(self, work: Coroutine[Any, Any, object], what: str) -> None:
        """Raises KitError, beginning with `what`, soon after the last broker has ended."""
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []
        try:
            async with asyncio.timeout(None) as limit:

                def look() -> None:
                    if all(self.backend.state(each) == "down" for each in self.backend.broker_ids):
                        limit.reschedule(loop.time())
                    timers[:] = [loop.call_later(POLL_S, look)]

                look()
                await work
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise KitError(f"{what}, and no broker of this cluster runs any more{self._why()}") from error
        finally:
            timers[-1].cancel()

    def _check_topic_config(self, settings: Mapping[str, str]) -> None:
        from barnabas.broker.config.table import TOPIC_KEYS

        for key in settings:
            if key not in TOPIC_KEYS:
                raise KitError(unknown("topic setting", key, TOPIC_KEYS))

    async def delete_topics(self, *names: str) -> None:
        """Deletes topics; returns when no broker knows them."""
        for each in names:
            if not isinstance(each, str):
                raise KitError(f"delete_topics({each!r}): write each name as text, for example delete_topics('a', 'b')")
        async with self._turn, self.limit(f"the deletion of {len(names)} topics"):
            from barnabas.client import KafkaError
            from barnabas.client.errors import UnknownTopicOrPartition

            admin = await self.admin()
            try:
                await self._while_one_runs(
                    admin.delete_topics(list(names)), f"the topics {', '.join(names)} were not deleted"
                )
            except UnknownTopicOrPartition as error:
                known = await admin.list_topics()
                unknown_one = next((each for each in names if each not in known), names[0])
                raise KitError(unknown("topic", unknown_one, known)) from error
            except KafkaError as error:
                raise KitError(f"the topics {', '.join(names)} were not deleted: {error}") from error
            await self._until(lambda: self._without(names), f"the topics {', '.join(names)} are gone")

    async def topics(self) -> list[str]:
        """Names of all topics that are not internal."""
        async with self._turn, self.limit("the list of topics"):
            return sorted(await (await self.admin()).list_topics())

    # -- what brokers know

    async def partitions(self, topic: str) -> list[dict[str, Any]]:
        """Leader, replicas and in-sync replicas of each partition. Raises KitError for an unknown topic."""
        async with self.limit(f"the description of topic '{topic}'"):
            return await self._partitions(topic)

    async def _partitions(self, topic: str) -> list[dict[str, Any]]:
        found = await self._known(self._any_running(), topic)
        if not found:
            raise KitError(unknown("topic", topic, await (await self.admin()).list_topics()))
        return found

    async def _known(self, broker_id: int | None, topic: str) -> list[dict[str, Any]]:
        if self.backend.mode == "remote" or broker_id is None:
            from barnabas.client.errors import UnknownTopicOrPartition

            try:
                info = (await (await self.admin()).describe_topics([topic]))[topic]
            except UnknownTopicOrPartition:
                return []
            return [
                {"leader": each.leader, "replicas": list(each.replicas), "isr": list(each.isr)}
                for each in info.partitions
            ]
        found: dict[str, list[dict[str, Any]]] = await self.backend.command(broker_id, "partitions", {"topic": topic})
        return found.get(topic, [])

    async def _in_sync(self, topic: str, partitions: int = 0) -> bool:
        """Whether every running broker knows all partitions, with a running leader and its running replicas in sync."""
        running = self._joined()
        for broker_id in [None] if self.backend.mode == "remote" else running:
            try:
                found = await self._known(broker_id, topic)
            except (KitError, RuntimeError):
                if broker_id is None or self.backend.state(broker_id) == "running":
                    raise
                return False  # it has ended before its answer; the others tell the rest
            if len(found) < max(partitions, 1):
                return False
            for each in found:
                expected = set(each["replicas"]).intersection(running)
                if each["leader"] not in running or not expected <= set(each["isr"]):
                    return False
        return True

    async def _without(self, names: Iterable[str]) -> bool:
        for broker_id in [None] if self.backend.mode == "remote" else self._joined():
            for name in names:
                if await self._known(broker_id, name):
                    return False
        return True

    # -- brokers: their id may be left out where the cluster has only one

    async def kill(self, broker_id: int | None = None, *, lose: Lose = "nothing") -> None:
        """Ends a broker as SIGKILL does: without notice.

        Args:
            broker_id: may be left out where the cluster has only one.
            lose: "nothing": what it has written stays. "page_cache": only what it has synced stays, as after a power loss.
        """
        self.own("kill")
        broker_id = self.check_broker(broker_id)
        check_loss(self.backend.mode, self.backend.state(broker_id), broker_id, lose)
        async with self._turn, self.limit(f"the end of broker {broker_id}"):
            await self._starts.cancel(broker_id)
            for each in self.extensions:
                await each.before_kill(broker_id)
            await self.backend.kill_broker(broker_id, lose)

    async def stop_broker(self, broker_id: int | None = None) -> None:
        """Stops a broker cleanly, after handing over its leaderships; `restart` starts it again."""
        self.own("stop_broker")
        broker_id = self.check_broker(broker_id)
        async with self._turn, self.limit(f"the clean stop of broker {broker_id}"):
            state = self.backend.state(broker_id)
            if state in ("paused", "starting"):
                first = "resume it" if state == "paused" else f"wait_until_ready({broker_id})"
                raise KitError(f"broker {broker_id} is {state}, so it cannot stop cleanly: {first}, or kill it")
            await self.backend.stop_broker(broker_id)

    async def restart(self, *broker_ids: int, wait: bool = True) -> None:
        """Starts brokers on their data and ports, all at once; without ids all brokers.

        Running ones stop cleanly first, paused ones are killed.
        A broker serves only while a majority of the cluster runs: after the end of most brokers start them in one call. `wait=False`
        returns once the starts have begun; `wait_until_ready` waits for them.
        """
        self.own("restart")
        checked = [self.check_broker(each) for each in broker_ids] or self.backend.broker_ids
        async with self._turn, self.limit(f"the restart of {broker_names(checked)}"):
            await self._restart(*checked, wait=wait)

    async def _restart(self, *broker_ids: int, wait: bool = True) -> None:
        for each in sorted(self._cut_off().intersection(broker_ids)):
            raise KitError(f"broker {each} is cut off from the others, so it cannot register: heal() first")
        await self._starts.cancel(*broker_ids)
        await asyncio.gather(*(self._end(each) for each in broker_ids))
        if not wait:
            await self._starts.begin(broker_ids)
            return
        # At once: a broker serves when a majority of the voters runs.
        await asyncio.gather(*(self.backend.start_broker(each) for each in broker_ids))
        for each in broker_ids:
            await self._on_started(each)
        await self._until(
            lambda: self._listed_everywhere(*broker_ids), f"every broker knows {broker_names(broker_ids)}"
        )

    async def _on_started(self, broker_id: int) -> None:
        for extension in self.extensions:
            await extension.on_started(broker_id)

    async def _on_late_start(self, broker_id: int) -> None:
        """A start without a waiter has ended: applies what the test has changed since, as after a pause."""
        await self._on_started(broker_id)
        for extension in self.extensions:
            await extension.on_resumed(broker_id)

    async def _end(self, broker_id: int) -> None:
        state = self.backend.state(broker_id)
        if state == "paused":
            await self.backend.kill_broker(broker_id)
        elif state == "running":
            await self.backend.stop_broker(broker_id)

    async def _listed_everywhere(self, *broker_ids: int) -> bool:
        for each in self._joined():
            if not set(broker_ids) <= set(await self.backend.command(each, "live_brokers", {})):
                return False
        return True

    async def rolling_restart(self) -> None:
        """Restarts the brokers one by one; each is in sync again before the next one stops."""
        self.own("rolling_restart")
        async with self._turn, self.limit("the rolling restart", self.timeout_s * len(self.backend.broker_ids)):
            for broker_id in self.backend.broker_ids:
                await self._restart(broker_id)
                await self._until(
                    self._all_in_sync, f"all replicas are in sync after the restart of broker {broker_id}"
                )

    async def _all_in_sync(self) -> bool:
        first = self._any_running()
        if first is None:
            return False
        topics: dict[str, Any] = await self.backend.command(first, "partitions", {})
        for topic in topics:
            if not await self._in_sync(topic):
                return False
        return True

    async def settled(self) -> None:
        """Returns when every electable partition has a leader and running replicas are in sync."""
        async with self.limit("the elections after the end of a broker"):
            await self._until(self._led, "every partition has a leader and its replicas are in sync")

    async def _led(self) -> bool:
        running = set(self._joined())
        for broker_id in running:
            topics: dict[str, Any] = await self.backend.command(broker_id, "partitions", {})
            for each in (each for partitions in topics.values() for each in partitions):
                if not running.intersection(each["isr"]):
                    continue  # all its in-sync replicas are down
                if each["leader"] not in running or not running.intersection(each["replicas"]) <= set(each["isr"]):
                    return False
        return True

    async def pause(self, broker_id: int | None = None) -> None:
        """Stops a broker like SIGSTOP: its connections stay open but it answers nothing."""
        self.own("pause")
        broker_id = self.check_broker(broker_id)
        async with self._turn, self.limit(f"the pause of broker {broker_id}"):
            if self.backend.state(broker_id) == "down":
                raise KitError(f"broker {broker_id} is down, so it cannot be paused: restart it first")
            await self.backend.pause_broker(broker_id)

    async def resume(self, broker_id: int | None = None) -> None:
        """Continues a paused broker."""
        self.own("resume")
        broker_id = self.check_broker(broker_id)
        async with self._turn, self.limit(f"the resumption of broker {broker_id}"):
            was_paused = self.backend.state(broker_id) == "paused"
            await self.backend.resume_broker(broker_id)
            if was_paused and self.backend.state(broker_id) == "running":
                for extension in self.extensions:
                    await extension.on_resumed(broker_id)

    async def verified(self) -> None:
        """Raises KitError if a strict fault of the test matched nothing."""
        for each in self.extensions:
            await each.verified()

    async def command(self, broker_id: int, name: str, arguments: Mapping[str, Any]) -> Any:
        """Runs a command inside a running broker (node_commands.py)."""
        self.own(f"command '{name}'")
        if self.backend.state(self.check_broker(broker_id)) != "running":
            raise KitError(f"broker {broker_id} is {self.backend.state(broker_id)}, so it cannot do '{name}'")
        async with self.limit(f"command '{name}' of broker {broker_id}"):
            return await self.backend.command(broker_id, name, arguments)

    async def client_connections(self) -> dict[str, tuple[int, str]]:
        """Broker and address of a connection by client id, without the kit's own and inter-broker ones."""
        async with self.limit("the list of connections"):
            running = self.running()
            told = await asyncio.gather(*(self.backend.command(each, "connections", {}) for each in running))
        return {
            each["client_id"]: (broker_id, f"{each['host']}:{each['port']}")
            for broker_id, answer in zip(running, told, strict=True)
            for each in answer
        }

    # -- leaders

    async def leader(self, topic: str, partition: int = 0) -> int:
        """Broker id of the leader of a partition; −1 without one."""
        checked_number("partition", partition)
        found = await self.partitions(topic)
        if not 0 <= partition < len(found):
            raise KitError(
                f"partition {partition} of topic '{topic}' is unknown; it has partitions 0 to {len(found) - 1}"
            )
        return int(found[partition]["leader"])

    async def controller(self) -> int:
        """Broker id of the active controller; −1 without one."""
        if self.backend.mode == "remote":
            async with self.limit("the description of the quorum"):
                return (await (await self.admin()).describe_quorum()).leader_id
        first = self._any_running()
        return -1 if first is None else int(await self.command(first, "controller", {}))

    async def move_coordinator(self, *, txn: str | None = None, group: str | None = None, to: int | None = None) -> int:
        """Moves the coordinator of a transactional id or of a group to another broker; returns the id of that broker.

        Args:
            to: a broker with a replica of the coordinator's partition; None takes the next running one.

        Raises KitError if there is no other broker for it.
        """
        name = group if txn is None else txn
        if (txn is None) == (group is None) or not isinstance(name, str) or not name:
            raise KitError(
                f"move_coordinator(txn={txn!r}, group={group!r}): name one of them, a transactional id or the id of a group"
            )
        if len(self.backend.broker_ids) == 1:
            raise KitError(
                "this cluster has one broker, so its coordinators cannot move: use Cluster(brokers=3) or brokers=3 in the marker"
            )
        target = None if to is None else self.check_broker(to)
        topic = GROUP_METADATA_TOPIC if txn is None else TRANSACTION_STATE_TOPIC
        count = len(await self.partitions(topic))
        return await self.move_leader(topic, partition_for(name, count), to=target)

    async def move_leader(self, topic: str, partition: int = 0, *, to: int | None = None) -> int:
        """Elects another replica of a partition and returns its broker id; `to=None` takes the next running replica."""
        before = await self.leader(topic, partition)
        async with self._turn, self.limit(f"the move of the leader of {topic}-{partition}"):
            replicas = [int(each) for each in (await self._partitions(topic))[partition]["replicas"]]
            if to is None:
                others = [each for each in replicas if each != before and each in self._joined()]
                if not others:
                    raise KitError(f"{topic}-{partition} has no other running replica than broker {before}")
                to = others[0]
            if to not in replicas:
                raise KitError(
                    f"broker {to} has no replica of {topic}-{partition}; its replicas are on {broker_names(replicas)}"
                )
            if to != before:
                await self._elect(topic, partition, [to, *(each for each in replicas if each != to)])
        return to

    async def _elect(self, topic: str, partition: int, replicas: list[int]) -> None:
        from barnabas.client import TopicPartition

        admin, where = await self.admin(), TopicPartition(topic, partition)
        await admin.alter_partition_reassignments({where: replicas})
        await admin.elect_leaders([where])

        async def moved() -> bool:
            for broker_id in [None] if self.backend.mode == "remote" else self._joined():
                if (await self._known(broker_id, topic))[partition]["leader"] != replicas[0]:
                    return False
            return True

        await self._until(moved, f"broker {replicas[0]} leads {topic}-{partition}")
