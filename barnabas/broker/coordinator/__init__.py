"""Transaction and group coordinators."""
