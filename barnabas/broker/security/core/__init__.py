"""The steps of a SASL exchange."""
