#!/usr/bin/env bash
# Makes the secrets of docker-compose.secure.yml, and prints them.
#   secrets.sh make NODE…                  an authority and a certificate for each node, in /secrets; copies what a node needs to /nodes/NODE
#   secrets.sh cat FILE                    prints a file
#   secrets.sh client-file USER CA_FILE    prints client properties of a user; CA_FILE is the path of ca.pem on the client's machine.
#                                          PASSWORD in the environment is the user's password; that of admin is ADMIN_PASSWORD
set -euo pipefail
case ${1:-} in
make)
  shift
  if [[ $ADMIN_PASSWORD == *[,\"\\[:cntrl:]]* || $ADMIN_PASSWORD == " "* || $ADMIN_PASSWORD == *" " ]]; then
    echo 'secrets.sh: the password of admin must not have a comma, ", \, a control character, or a space at an end' >&2
    exit 2
  fi
  names=()
  for node in "$@"; do names+=("$node=$node,localhost,127.0.0.1"); done
  barnabas certificates /secrets "${names[@]}"
  for node in "$@"; do install -o barnabas -m 400 /secrets/ca.pem "/secrets/$node.pem" "/nodes/$node/"; done
  ;;
cat)
  exec cat "$2"
  ;;
client-file)
  if [[ $2 == admin ]]; then PASSWORD=$ADMIN_PASSWORD; fi
  if [[ -z ${PASSWORD:-} ]]; then
    echo "secrets.sh: the password of $2 is missing: export PASSWORD and write 'run --rm -T -e PASSWORD secrets client-file $2 …'" >&2
    exit 2
  fi
  if [[ $2$PASSWORD == *[\"\\[:cntrl:]]* ]]; then
    echo "secrets.sh: the user and the password must not have \", \\ or a control character" >&2
    exit 2
  fi
  cat <<END
bootstrap.servers=$BOOTSTRAP
security.protocol=SASL_SSL
ssl.truststore.type=PEM
ssl.truststore.location=$3
sasl.mechanism=SCRAM-SHA-256
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="$2" password="$PASSWORD";
END
  ;;
*)
  echo "secrets.sh: write make, cat or client-file" >&2
  exit 2
  ;;
esac
