"""The real ports: event loop, network, clock, randomness, files."""
