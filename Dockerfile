# One image for every node of a cluster: see docker-compose.yml.
# BASE_IMAGE is any image with Python 3.11 or newer. An image that can be built again is named by its digest: python:3.12-slim@sha256:…
ARG BASE_IMAGE=python:3.12-slim

FROM ${BASE_IMAGE} AS build
WORKDIR /src
COPY pyproject.toml setup.py build_backend.py README.md LICENSE ./
COPY barnabas barnabas
# A slim image has no compiler, and brokers hand batches on as they are: plain Python loses nothing here.
ENV BARNABAS_PURE=1
RUN python3 -m venv /opt/barnabas && /opt/barnabas/bin/pip install --no-cache-dir --quiet '.[security]'

FROM ${BASE_IMAGE}
# The user id and the paths are those of Kafka's image, so that compose files and volumes made for it work.
RUN useradd --system --uid 1000 --non-unique --no-create-home barnabas \
    && mkdir -p /data /secrets /var/lib/kafka/data /etc/kafka/docker /etc/kafka/secrets /etc/confluent/docker /mnt/shared/config \
    && ln -s /opt/barnabas/docker/run.sh /etc/kafka/docker/run \
    && ln -s /opt/barnabas/docker/run.sh /etc/confluent/docker/run \
    && ln -s /opt/barnabas/docker/run.sh /etc/confluent/docker/launch \
    && touch /etc/confluent/docker/bash-config \
    && chown barnabas /data /secrets /var/lib/kafka/data
COPY --from=build /opt/barnabas /opt/barnabas
COPY docker /opt/barnabas/docker
# testcontainers for Python starts the scripts of Confluent's image and edits `configure` first, as the user of the container.
RUN chmod -R a+rX /opt/barnabas/docker \
    && cp /opt/barnabas/docker/configure.sh /etc/confluent/docker/configure \
    && chown -R barnabas /etc/confluent/docker
ENV PATH=/opt/barnabas/bin:$PATH PYTHONUNBUFFERED=1
USER barnabas
VOLUME /data
EXPOSE 9092 9404
# A stop asks the controller to move leaderships away first: give it the time (docker stop --time 30).
STOPSIGNAL SIGTERM
# Asks the node itself whether it is ready, which costs a millisecond of CPU; a Python process would cost 200. A command of
# your own needs --metrics-listen with port 9404, too.
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s CMD ["bash", "-c", \
  "exec 3<>/dev/tcp/127.0.0.1/9404; printf 'GET /readyz HTTP/1.0\\r\\n\\r\\n' >&3; read -r answer <&3; [[ $answer == *' 200 '* ]]"]
ENTRYPOINT ["/opt/barnabas/docker/entrypoint.sh"]
CMD ["/etc/kafka/docker/run"]
