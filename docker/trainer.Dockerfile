# The trainer: worker of a TrainingRun, and every step of the Kubeflow pipelines. Targets cpu, gpu, tpu: the same stages
# with another wheel of TensorFlow.  make images TARGETS=trainer-cpu, or in the root of the repository:
#   docker build -f docker/trainer.Dockerfile --target cpu -t caloscale/trainer:0.1.0 .
# BASE_IMAGE: Debian or Ubuntu with Python 3.11 to 3.13, or one that has it to install (docs/images.md).
ARG BASE_IMAGE=python:3.11.14-slim-bookworm@sha256:65a93d69fa75478d554f4ad27c85c1e69fa184956261b4301ebaf6dbb0a3543d

# What runs is Python and tini. A worker must not be process 1: the kernel keeps signals from it that it does not handle.
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
# pip has an environment of its own, which stays behind. The machine's settings of pip come as a secret, if at all.
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore \
    PIP_CONFIG_FILE=/run/secrets/pip.conf
WORKDIR /source
COPY docker/pins.txt ./
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=certificates.pem \
    python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/caloscale \
    && /opt/pip/bin/pip install --quiet --constraint pins.txt setuptools

FROM python AS requirements
ARG EXTRAS=simulate
WORKDIR /source
COPY pyproject.toml docker/dependencies.py ./
RUN for each in cpu gpu tpu; do python3 dependencies.py list --extras train,${each},pipeline,cluster,buckets,${EXTRAS} > ${each}.txt; done

# What is needed, without our code: these layers stay when the code changes.
FROM build AS dependencies-cpu
COPY constraints.txt docker/dependencies.py ./
COPY --from=requirements /source/cpu.txt requirements.txt
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=certificates.pem \
    /opt/pip/bin/python dependencies.py install --into /opt/caloscale --requirement requirements.txt \
    --constraint constraints.txt --constraint pins.txt

FROM build AS dependencies-gpu
COPY constraints.txt docker/dependencies.py ./
COPY --from=requirements /source/gpu.txt requirements.txt
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=certificates.pem \
    /opt/pip/bin/python dependencies.py install --into /opt/caloscale --requirement requirements.txt \
    --constraint constraints.txt --constraint pins.txt

FROM build AS dependencies-tpu
COPY constraints-tpu.txt docker/dependencies.py ./
COPY --from=requirements /source/tpu.txt requirements.txt
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=certificates.pem \
    /opt/pip/bin/python dependencies.py install --into /opt/caloscale --requirement requirements.txt \
    --constraint constraints-tpu.txt --constraint pins.txt

# Our code alone, below the same paths, without the network.
FROM build AS package
COPY pyproject.toml LICENSE NOTICE README.md ./
COPY src src
RUN /opt/pip/bin/pip wheel --quiet --no-deps --no-index --no-build-isolation --wheel-dir /wheels . \
    && /opt/pip/bin/pip --python /opt/caloscale/bin/python install --quiet --no-deps --no-index --no-warn-script-location \
    --root /package /wheels/*.whl

FROM python AS runtime
# /tmp may be the only folder that can be written to. Compiled Python is in the image.
ENV PATH=/opt/caloscale/bin:${PATH} HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes can see that it is not root.
USER 65532:65532
WORKDIR /tmp
EXPOSE 2222
ENTRYPOINT ["/usr/bin/tini", "--"]
CMD ["caloscale", "--help"]

FROM runtime AS cpu
COPY --from=dependencies-cpu /opt/caloscale /opt/caloscale
COPY --from=package /package /
LABEL org.opencontainers.image.title="caloscale trainer (cpu)"

FROM runtime AS gpu
# Where GKE's device plugin mounts the driver; others (NVIDIA's toolkit) mount it where the linker looks anyway.
ENV LD_LIBRARY_PATH=/usr/local/nvidia/lib64 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=dependencies-gpu /opt/caloscale /opt/caloscale
COPY --from=package /package /
LABEL org.opencontainers.image.title="caloscale trainer (gpu)"

FROM runtime AS tpu
COPY --from=dependencies-tpu /opt/caloscale /opt/caloscale
COPY --from=package /package /
LABEL org.opencontainers.image.title="caloscale trainer (tpu)"
