"""An S3-compatible store in this process (moto), for tests of files that are not on a disk."""

from __future__ import annotations

import urllib.request
import uuid

from moto.server import ThreadedMotoServer


class ObjectStore:
    """A running store.

    Attributes:
        environment: variables by which clients find it.
    """

    def __init__(self) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self.environment: dict[str, str] = {}

    def __enter__(self) -> ObjectStore:
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def new_folder(self) -> str:
        """The URI of a folder in a bucket of its own."""
        bucket = f"b-{uuid.uuid4().hex[:8]}"
        create = urllib.request.Request(f"{self.environment['AWS_ENDPOINT_URL']}/{bucket}", method="PUT")
        urllib.request.urlopen(create).close()
        return f"s3://{bucket}/rows"
