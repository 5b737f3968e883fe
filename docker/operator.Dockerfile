# syntax=docker/dockerfile:1
# The operator: planner and client of Kubernetes, no TensorFlow. Build it in the root of the repository:
#   docker build -f docker/operator.Dockerfile -t caloscale/operator:0.1.0 .
ARG BASE_IMAGE=python:3.12.12-slim-bookworm
FROM ${BASE_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /source
RUN python3 -m venv /opt/caloscale
COPY constraints.txt docker/operator-requirements.txt ./
RUN /opt/caloscale/bin/pip install --constraint constraints.txt --requirement operator-requirements.txt
COPY pyproject.toml LICENSE NOTICE README.md ./
COPY src src
# Without the requirements of training: the list above is all that the operator imports.
RUN /opt/caloscale/bin/pip install --no-deps . && /opt/caloscale/bin/python -m compileall -q /opt/caloscale/lib

FROM ${BASE_IMAGE}
COPY --from=build /opt/caloscale /opt/caloscale
ENV PATH=/opt/caloscale/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes can see that it is not root.
USER 65532:65532
WORKDIR /tmp
EXPOSE 8080 9090
ENTRYPOINT ["python", "-m", "caloscale.operator"]
