#!/usr/bin/env bash
# Starts one node, as /etc/kafka/docker/run of Kafka's image: the settings are its variables (KAFKA_NODE_ID is node.id) and
# /mnt/shared/config/server.properties, if that is mounted. Arguments NAME=VALUE are variables, too.
set -euo pipefail
for assignment in "$@"; do
  if [[ $assignment != *=* ]]; then
    echo "run: write NAME=VALUE, not $assignment" >&2
    exit 2
  fi
  export "${assignment?}"
done
file=/mnt/shared/config/server.properties
if [ -e $file ]; then
  exec barnabas serve --environment --config $file
fi
exec barnabas serve --environment
