"""A cluster's clock, which tests move forward."""
