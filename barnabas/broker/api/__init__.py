"""What every layer of the broker shares: calls and their answers, access, principals, routes."""
