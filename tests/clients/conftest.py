"""The served brokers of tests/process, for foreign clients; and what the bundled client's tests share."""

from tests.support.clients.bundled import admin, bootstrap, name
from tests.support.processes.fixtures import serve, served_broker, shared_broker

__all__ = ["admin", "bootstrap", "name", "serve", "served_broker", "shared_broker"]
