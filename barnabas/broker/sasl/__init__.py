"""SASL mechanisms, server side."""
