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
options=()
if [ -e $file ]; then options=(--config $file); fi
sets() { [ -e $file ] && grep -qE "^[[:space:]]*($1)[[:space:]]*[=:[:space:]]" $file; }
sets 'log\.dirs?' || export KAFKA_LOG_DIR="${KAFKA_LOG_DIR:-/data}"
sets 'metrics\.listen' || export KAFKA_METRICS_LISTEN="${KAFKA_METRICS_LISTEN:-0.0.0.0:9404}" # the health check asks it
exec barnabas serve --environment "${options[@]}"
