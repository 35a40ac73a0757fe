"""Audit: runs every test that uses `kafka` again under disturbances (`pytest --kafka-audit`)."""
