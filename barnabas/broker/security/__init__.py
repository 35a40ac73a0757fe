"""Node security: principals, access rights, authentication of connections."""
