"""Health: whether a node is alive, started and ready, and why not, in words."""

from __future__ import annotations

from barnabas.broker.config.broker_config import BROKER
from barnabas.broker.membership.lifecycle import BrokerState
from barnabas.broker.metrics.loop_watch import LoopWatch
from barnabas.broker.metrics.parts import Observed


class Health:
    """A broker is ready while unfenced, with all logs and log directories; a controller once it has metadata and a leader."""

    def __init__(self, node: Observed, watch: LoopWatch) -> None:
        self._node = node
        self._watch = watch
        self._started = False

    def alive(self) -> str | None:
        """Why the process should be ended; None while it works."""
        failure = self._node.reactor.failure
        return None if failure is None else f"the node has failed: {failure}"

    def started(self) -> str | None:
        """Why the node has not served yet; None once it has served."""
        if not self._started:
            reason = self.ready()
            self._started = reason is None or self._node.server.serving
            return None if self._started else reason
        return None

    def ready(self) -> str | None:
        """Why the node is not ready; None if it is."""
        return self.alive() or self._failed_directory() or self._not_serving() or self._stalled()

    def _failed_directory(self) -> str | None:
        failed = [each for each in self._node.log_dirs if each.failure is not None]
        return f"log directory failed: {failed[0].failure}" if failed else None

    def _not_serving(self) -> str | None:
        node = self._node
        image = node.current_image.image
        if image.offset < 0:
            return "loading metadata: nothing is replayed yet"
        if BROKER not in node.config.roles:
            known = node.quorum.leader_id >= 0
            return None if known else "loading metadata: no leader of the metadata quorum is known"
        state = node.lifecycle.state
        if state is BrokerState.STARTING:
            return f"loading metadata: node {node.node_id} is not registered yet"
        if state in (BrokerState.PENDING_CONTROLLED_SHUTDOWN, BrokerState.STOPPED):
            return "the node stops"
        opened, total = node.replicas.recovery_progress
        if opened < total or state is BrokerState.RECOVERY:
            return f"recovering {total - opened} of {total} partitions"
        registered = image.brokers.get(node.node_id)
        if registered is None or registered.fenced or not node.server.serving:
            return "fenced: the controller has not admitted this broker"
        return None

    def _stalled(self) -> str | None:
        stall = self._watch.recent_stall()
        return None if stall is None else f"the loop stalled for {stall[0]} ms, {stall[1] / 1000:.1f} s ago"
