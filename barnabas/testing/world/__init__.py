"""Injection around the brokers: network cuts, slow links, failing disks, lost page caches, moves of coordinators and group partitions."""
