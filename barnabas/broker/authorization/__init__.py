"""Which principal may do what: ACLs, permissions of each API, the audit log."""
