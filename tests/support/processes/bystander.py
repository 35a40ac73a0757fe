"""A producer that sends one record at a time and measures how long each waits: `python -m tests.support.processes.bystander ADDRESS TOPIC`.

Prints `began`, goes on until something comes on stdin, then prints how many were acknowledged and the longest wait in seconds.
"""

from __future__ import annotations

import selectors
import sys
import time

from tests.support.oracle.wire import Wire


def main(address: str, topic: str) -> None:
    longest_s, count = 0.0, 0
    with Wire(address) as wire, selectors.DefaultSelector() as selector:
        wire.create_topic(topic)
        selector.register(sys.stdin, selectors.EVENT_READ)
        sys.stdout.write("began\n")
        sys.stdout.flush()
        while not selector.select(0.005):
            began = time.monotonic()
            answer = wire.produce(8, topic, 0, [b"%d" % count])
            longest_s = max(longest_s, time.monotonic() - began)
            assert answer.error_code == 0, answer
            assert answer.base_offset == count, answer
            count += 1
    sys.stdout.write(f"{count} {longest_s}\n")


main(sys.argv[1], sys.argv[2])
