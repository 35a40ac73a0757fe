"""Quotas of clients: how much they may produce, fetch, ask, change and connect."""
