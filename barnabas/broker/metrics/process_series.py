"""Process series of the Prometheus client libraries, and Kafka's disk bytes from /proc/self/io."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from barnabas.runtime import descriptors, process_stats


def process_series() -> Iterator[Metric]:
    """Without families that the system does not know."""
    yield CounterMetricFamily(
        "process_cpu_seconds", "CPU time of the process, user and system.", process_stats.process_cpu_s()
    )
    for name, doc, value in (
        ("process_resident_memory_bytes", "Memory in use.", process_stats.resident_bytes()),
        ("process_virtual_memory_bytes", "Size of the address space.", process_stats.virtual_bytes()),
        ("process_start_time_seconds", "Start of the process, since the epoch.", process_stats.started_at_s()),
        ("process_open_fds", "Open files and connections.", process_stats.open_descriptors()),
        ("process_max_fds", "Limit of open files and connections.", descriptors.limit()),
    ):
        if value is not None:
            yield GaugeMetricFamily(name, doc, value)
    moved = process_stats.disk_bytes()
    if moved is not None:
        for direction, value in zip(("read", "write"), moved, strict=True):
            yield GaugeMetricFamily(
                f"kafka_server_kafkaserver_linux_disk_{direction}_bytes",
                f"Bytes that the process caused to be {'read from' if direction == 'read' else 'written to'} disks.",
                value,
            )
