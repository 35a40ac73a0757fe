"""An application on Faust: it counts words in a table, whose changelog topic has the counts for others to read.

Exactly once: Faust writes the changelog and the offsets of the words in one transaction for each partition. Keep the results in
a table: what an agent of Faust 0.15 sends to another topic is outside of these transactions.
"""

from __future__ import annotations

import sys

import faust

__all__ = ["make_app"]


def make_app(bootstrap_servers: str, folder: str) -> faust.App:
    """The application; `folder` is for the files of this worker."""
    app = faust.App(
        "wordcount",
        broker=f"kafka://{bootstrap_servers}",
        store="memory://",
        datadir=folder,
        topic_partitions=1,
        topic_replication_factor=1,
        processing_guarantee="exactly_once",
        consumer_group_instance_id="wordcount-1",  # a worker that starts again does not wait for the end of its old session
        web_enabled=False,
    )
    words = app.topic("words", value_type=bytes, value_serializer="raw")
    counts = app.Table("counts", default=int)

    @app.agent(words)
    async def count(stream: faust.types.StreamT[bytes]) -> None:
        async for word in stream:
            counts[word.decode()] += 1

    return app


if __name__ == "__main__":
    faust.Worker(make_app(sys.argv[1], sys.argv[2]), loglevel="warning").execute_from_commandline()
