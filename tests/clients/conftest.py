"""The served brokers of tests/process, for foreign clients."""

from tests.process.conftest import serve, served_broker, shared_broker

__all__ = ["serve", "served_broker", "shared_broker"]
