"""The simulated world: virtual time, in-memory network and disks, one seed."""
