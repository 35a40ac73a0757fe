"""Client quotas: byte rates, request time, metadata mutations, connections."""
