#!/usr/bin/env bash
# Starts one node of docker-compose.secure.yml. The first start creates the user admin; its password is in no command line.
set -euo pipefail
settings=$(mktemp)
cat > "$settings" <<END
node.id=$NODE_ID
controller.quorum.voters=$VOTERS
listeners=INTERNAL://0.0.0.0:29092,EXTERNAL://0.0.0.0:9092,CONTROLLER://0.0.0.0:19092
advertised.listeners=INTERNAL://broker-$NODE_ID:29092,EXTERNAL://localhost:$EXTERNAL_PORT
listener.security.protocol.map=INTERNAL:SSL,EXTERNAL:SASL_SSL,CONTROLLER:SSL
inter.broker.listener.name=INTERNAL
ssl.keystore.type=PEM
ssl.keystore.location=/secrets/broker-$NODE_ID.pem
ssl.truststore.type=PEM
ssl.truststore.location=/secrets/ca.pem
listener.name.internal.ssl.client.auth=required
listener.name.controller.ssl.client.auth=required
listener.name.external.sasl.enabled.mechanisms=SCRAM-SHA-256
listener.name.external.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:admin;User:CN=broker-1;User:CN=broker-2;User:CN=broker-3
default.replication.factor=3
min.insync.replicas=2
END
if [ ! -e /data/meta.properties ]; then
  # A pipe, not a file: the container keeps no copy of the password.
  barnabas storage format /data --node-id "$NODE_ID" --cluster-id "$CLUSTER_ID" \
    --add-scram "@"<(echo "SCRAM-SHA-256=[name=admin,password=$ADMIN_PASSWORD]")
fi
unset ADMIN_PASSWORD
exec barnabas serve --config "$settings" --data /data --metrics-listen 0.0.0.0:9404
