# The operator: planner and client of Kubernetes, no TensorFlow.  make images TARGETS=operator, or in the root of the
# repository:
#   docker build -f docker/operator.Dockerfile -t caloscale/operator:0.1.0 .
# Stages as in trainer.Dockerfile, which says why.
ARG BASE_IMAGE=python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d

FROM ${BASE_IMAGE} AS python
RUN apt-get update --quiet \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends tini ca-certificates \
    $(command -v python3 >/dev/null || echo python3) >/dev/null \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log \
    && { python3 -m pip uninstall --yes --quiet setuptools wheel pip 2>/dev/null || true; } \
    && echo 'caloscale:x:65532:65532:caloscale:/tmp:/usr/sbin/nologin' >> /etc/passwd \
    && echo 'caloscale:x:65532:' >> /etc/group

FROM python AS build
RUN python3 -c 'import ensurepip, venv' 2>/dev/null \
    || { apt-get update --quiet \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3-venv >/dev/null \
    && rm -rf /var/lib/apt/lists/*; }
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore \
    PIP_CONFIG_FILE=/run/secrets/pip.conf
WORKDIR /source
COPY docker/pins.txt ./
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=certificates.pem \
    python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/caloscale \
    && /opt/pip/bin/pip install --quiet --constraint pins.txt setuptools

# Not the requirements of training: this list is all that the operator imports.
FROM build AS dependencies
COPY constraints.txt docker/dependencies.py docker/operator-requirements.txt ./
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=certificates.pem \
    /opt/pip/bin/python dependencies.py install --into /opt/caloscale --requirement operator-requirements.txt \
    --constraint constraints.txt --constraint pins.txt

FROM build AS package
COPY pyproject.toml LICENSE NOTICE README.md ./
COPY src src
RUN /opt/pip/bin/pip wheel --quiet --no-deps --no-index --no-build-isolation --wheel-dir /wheels . \
    && /opt/pip/bin/pip --python /opt/caloscale/bin/python install --quiet --no-deps --no-index --no-warn-script-location \
    --root /package /wheels/*.whl

FROM python AS operator
ENV PATH=/opt/caloscale/bin:${PATH} HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
WORKDIR /tmp
EXPOSE 8080 9090
ENTRYPOINT ["/usr/bin/tini", "--", "python", "-m", "caloscale.operator"]
COPY --from=dependencies /opt/caloscale /opt/caloscale
COPY --from=package /package /
LABEL org.opencontainers.image.title="caloscale operator"
