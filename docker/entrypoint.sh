#!/usr/bin/env bash
# Runs a program by its path, a shell, or a command of barnabas: `docker run barnabas topic list -b …`.
case ${1:-} in
/* | sh | bash) exec "$@" ;;
*) exec barnabas "$@" ;;
esac
