"""Kafka's messages, one module an API family."""
