"""What brokers acknowledged and delivered, and the checks of it."""
