#!/usr/bin/env python3
"""Side-by-side broker benchmark over a neutral client (librdkafka through confluent-kafka).

usage: kbench.py NAME BOOTSTRAP [--pids P[,P...]] [--only case,...] [--scale 1.0] [--rf 1] [--sizes 100,1000,10000]
Prints one JSON line a case: wall seconds, rate, and the broker's own CPU seconds and RSS where --pids is given.
"""

import argparse
import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

ap = argparse.ArgumentParser()
ap.add_argument("name")
ap.add_argument("bootstrap")
ap.add_argument("--pids", default="")
ap.add_argument("--only", default="")
ap.add_argument("--scale", type=float, default=1.0)
ap.add_argument("--rf", type=int, default=1)
ap.add_argument("--sizes", default="100,1000,10000")  # bytes, of the case bulk
ap.add_argument("--warmup", action="store_true")
ap.add_argument("--conf", action="append", default=[])  # KEY=VALUE of librdkafka, e.g. security.protocol=ssl
a = ap.parse_args()
BASE: dict[str, Any] = {"bootstrap.servers": a.bootstrap, **dict(each.split("=", 1) for each in a.conf)}
PIDS = [int(p) for p in a.pids.split(",") if p]
HZ = os.sysconf("SC_CLK_TCK")


def cpu() -> float:
    t = 0
    for p in PIDS:
        f = Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split()
        t += int(f[11]) + int(f[12])
    return t / HZ


def rss() -> int:
    lines = (line for p in PIDS for line in Path(f"/proc/{p}/status").read_text().splitlines())
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) // 1024


admin = AdminClient({**BASE})
for _ in range(60):  # an open port is not yet a ready cluster
    try:
        md = admin.list_topics(timeout=5)
        if md.controller_id >= 0 and len(md.brokers) >= len(a.bootstrap.split(",")):
            break
    except KafkaException:
        pass
    time.sleep(0.5)


def topic(parts: int = 4) -> str:
    t = "b" + uuid.uuid4().hex[:10]
    for f in admin.create_topics([NewTopic(t, parts, a.rf)], operation_timeout=30).values():
        f.result()
    time.sleep(0.3)
    return t


def report(case: str, t0: float, c0: float, **kw: object) -> None:
    w = time.perf_counter() - t0
    c = cpu() - c0
    print(
        json.dumps(
            {
                "name": a.name,
                "case": case,
                "wall_s": round(w, 3),
                "broker_cpu_s": round(c, 2),
                "rss_mb": rss() if PIDS else None,
                **kw,
            }
        ),
        flush=True,
    )


def produce(n: int, size: int, parts: int = 4, /, **conf: object) -> tuple[str, float, float, dict[str, float]]:
    t = topic(parts)
    ok = [0]
    bad = [0]

    def cb(e: KafkaError | None, m: object) -> None:
        if e:
            bad[0] += 1
        else:
            ok[0] += 1

    p = Producer(
        {
            **BASE,
            "acks": "all",
            "linger.ms": 5,
            "batch.size": 1 << 20,
            "queue.buffering.max.messages": 2000000,
            "queue.buffering.max.kbytes": 1 << 20,
            **conf,
        }
    )
    body = os.urandom(size)
    p.list_topics(t, timeout=10)
    t0, c0 = time.perf_counter(), cpu()
    for i in range(n):
        while True:
            try:
                p.produce(t, body, partition=i % parts, on_delivery=cb)
                break
            except BufferError:
                p.poll(0.01)
        if not i & 1023:
            p.poll(0)
    p.flush(120)
    w = time.perf_counter() - t0
    return (
        t,
        t0,
        c0,
        {
            "records": n,
            "size": size,
            "mb_s": round(ok[0] * size / w / 1e6, 1),
            "krec_s": round(ok[0] / w / 1e3, 1),
            "failed": bad[0],
        },
    )


def consume(t: str, n: int, parts: int, /, **conf: object) -> tuple[float, float, dict[str, float]]:
    c = Consumer(
        {
            **BASE,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 1,
            "queued.max.messages.kbytes": 1 << 20,
            "queued.min.messages": 1000000,
            **conf,
        }
    )
    c.assign([TopicPartition(t, i, 0) for i in range(parts)])
    t0, c0 = time.perf_counter(), cpu()
    got = 0
    size = 0
    while got < n and time.perf_counter() - t0 < 120:
        ms = c.consume(min(10000, n - got), 1.0)
        got += sum(1 for m in ms if not m.error())
        size += sum(len(m.value() or b"") for m in ms if not m.error())
    w = time.perf_counter() - t0
    c.close()
    return t0, c0, {"records": got, "mb_s": round(size / w / 1e6, 1), "krec_s": round(got / w / 1e3, 1)}


def pct(seconds: list[float], q: float) -> float:
    x = sorted(seconds)
    return round(x[min(len(x) - 1, int(len(x) * q))] * 1e3, 3)


def scaled(count: int) -> int:
    return max(int(count * a.scale), 1)


def case_bulk() -> None:
    counts = {100: 1_000_000, 1000: 300_000, 10000: 50_000}
    for size in map(int, a.sizes.split(",")):
        n = scaled(counts[size])
        t, t0, c0, r = produce(n, size, **{"enable.idempotence": True})
        report(f"produce_{size}B", t0, c0, **r)
        t0, c0, r = consume(t, n, 4)
        report(f"consume_{size}B", t0, c0, **r)


def case_latency() -> None:
    t = topic(1)
    done: list[KafkaError | None] = []
    p = Producer({**BASE, "acks": "all", "linger.ms": 0, "enable.idempotence": True})
    p.list_topics(t, timeout=10)
    xs: list[float] = []
    t0, c0 = time.perf_counter(), cpu()
    for _i in range(scaled(3000)):
        s = time.perf_counter()
        p.produce(t, b"x" * 100, on_delivery=lambda e, _: done.append(e))
        while not done:
            p.poll(1)
        done.clear()
        xs.append(time.perf_counter() - s)
    report(
        "latency_acks_all", t0, c0, n=len(xs), p50_ms=pct(xs, 0.5), p99_ms=pct(xs, 0.99), per_s=round(len(xs) / sum(xs))
    )


def case_txn() -> None:
    t = topic(4)
    p = Producer({**BASE, "transactional.id": "t" + uuid.uuid4().hex, "linger.ms": 0})
    p.init_transactions(30)
    xs: list[float] = []
    t0, c0 = time.perf_counter(), cpu()
    n = scaled(500)
    for _i in range(n):
        s = time.perf_counter()
        p.begin_transaction()
        for k in range(10):
            p.produce(t, b"x" * 100, partition=k % 2)
        p.commit_transaction(30)
        xs.append(time.perf_counter() - s)
    report("txn_sequential", t0, c0, n=n, p50_ms=pct(xs, 0.5), p99_ms=pct(xs, 0.99), txn_s=round(n / sum(xs), 1))
    t0, c0, r = consume(t, n * 10, 4, **{"isolation.level": "read_committed"})
    report("txn_read_committed", t0, c0, **r)


def case_txn16() -> None:
    import threading

    t = topic(4)
    n = scaled(100)
    ps = [Producer({**BASE, "transactional.id": "t" + uuid.uuid4().hex, "linger.ms": 0}) for _ in range(16)]
    for p in ps:
        p.init_transactions(30)
    errs: list[str] = []

    def run(p: Producer) -> None:
        try:
            for _i in range(n):
                p.begin_transaction()
                for k in range(4):
                    p.produce(t, b"x" * 100, partition=k)
                p.commit_transaction(30)
        except Exception as e:
            errs.append(repr(e))

    ths = [threading.Thread(target=run, args=(p,)) for p in ps]
    t0, c0 = time.perf_counter(), cpu()
    for x in ths:
        x.start()
    for x in ths:
        x.join()
    w = time.perf_counter() - t0
    report("txn_16_producers", t0, c0, n=16 * n, txn_s=round(16 * n / w, 1), errors=errs[:2])


def case_e2e() -> None:
    t = topic(1)
    c = Consumer(
        {
            **BASE,
            "group.id": uuid.uuid4().hex,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 500,
        }
    )
    c.assign([TopicPartition(t, 0, 0)])
    p = Producer({**BASE, "acks": "all", "linger.ms": 0})
    p.produce(t, b"w")
    p.flush()
    c.poll(10)
    xs: list[float] = []
    t0, c0 = time.perf_counter(), cpu()
    for _i in range(scaled(1000)):
        s = time.perf_counter()
        p.produce(t, b"x" * 100)
        p.poll(0)
        while True:
            m = c.poll(1)
            if m is not None and not m.error():
                break
        xs.append(time.perf_counter() - s)
        p.poll(0)
    report("end_to_end", t0, c0, n=len(xs), p50_ms=pct(xs, 0.5), p99_ms=pct(xs, 0.99))
    c.close()


def case_partitions() -> None:
    # one topic of 1,000 partitions: until CreateTopics answers, and until a record is acknowledged on each of them
    t = "b" + uuid.uuid4().hex[:10]
    t0, c0 = time.perf_counter(), cpu()
    for f in admin.create_topics([NewTopic(t, 1000, a.rf)], operation_timeout=30).values():
        f.result()
    report("create_1000_partitions_answered", t0, c0)
    p = Producer(
        {
            **BASE,
            "acks": "all",
            "linger.ms": 0,
            "retry.backoff.ms": 10,
            "topic.metadata.refresh.fast.interval.ms": 20,
        }
    )
    ok = [0]

    def cb(e: KafkaError | None, m: object) -> None:
        ok[0] += e is None

    for i in range(1000):
        p.produce(t, b"x", partition=i, on_delivery=cb)
        p.poll(0)
    p.flush(60)
    report("create_1000_partitions_writable", t0, c0, acked=ok[0])
    n = scaled(1_000_000)
    t, t0, c0, r = produce(n, 100, 100, **{"enable.idempotence": True})
    report("produce_100_partitions", t0, c0, **r)


def case_conns() -> None:
    import socket

    host, port = a.bootstrap.split(",")[0].split(":")
    t0, c0 = time.perf_counter(), cpu()
    r0 = rss() if PIDS else 0
    ss = []
    for _i in range(scaled(2000)):
        s = socket.create_connection((host, int(port)))
        ss.append(s)
    time.sleep(1)
    report("idle_conns", t0, c0, n=len(ss), rss_added_mb=(rss() - r0) if PIDS else None)
    for s in ss:
        s.close()


if a.warmup:  # the same cases at a tenth of the size, unreported: a JVM's figures after it are warm ones
    import contextlib
    import io

    keep, a.scale = a.scale, a.scale / 10
    with contextlib.redirect_stdout(io.StringIO()):
        for f in (case_bulk, case_latency, case_txn, case_txn16):
            f()
    a.scale = keep
cases = {k[5:]: v for k, v in globals().items() if k.startswith("case_")}
for k in a.only.split(",") if a.only else cases:
    try:
        cases[k]()
    except Exception as e:
        print(json.dumps({"name": a.name, "case": k, "error": repr(e)[:300]}), flush=True)
