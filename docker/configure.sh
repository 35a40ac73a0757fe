#!/usr/bin/env bash
# /etc/confluent/docker/configure, to which testcontainers appends a call of kafka-storage: a node here formats its directory itself.
kafka-storage() { :; }
