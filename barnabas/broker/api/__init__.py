"""Types shared by the broker's layers: calls and answers, access, principals, routes."""
