"""The served brokers of `tests/support/processes/fixtures.py`, for every test of this folder."""

from tests.support.processes.fixtures import no_errors, serve, served_broker, shared_broker

__all__ = ["no_errors", "serve", "served_broker", "shared_broker"]
