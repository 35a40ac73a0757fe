"""Listeners, client connections and the router."""
