"""The served brokers of tests/process, for foreign clients; and what the bundled client's tests share."""

from tests.clients.bundled import admin, name
from tests.process.conftest import serve, served_broker, shared_broker

__all__ = ["admin", "name", "serve", "served_broker", "shared_broker"]
