"""The server side of the SASL mechanisms."""
