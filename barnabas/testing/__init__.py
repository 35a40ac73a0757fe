"""Tools for tests: simulation, faults, clusters."""
