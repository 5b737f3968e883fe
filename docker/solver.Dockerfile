# Launcher and workers of an MPIJob, the ranks of a solver run: the trainer with Open MPI, mpi4py and ssh.
#   make images TARGETS="trainer-cpu solver", or after the trainer, in the root of the repository:
#   docker build -f docker/solver.Dockerfile -t caloscale/solver:0.1.0 .
ARG TRAINER_IMAGE=caloscale/trainer:0.1.0

# What the extra `solver` adds to the trainer's environment, below the same paths. /opt/pip stays behind, as in
# trainer.Dockerfile.
FROM ${TRAINER_IMAGE} AS packages
USER 0:0
RUN python3 -c 'import ensurepip, venv' 2>/dev/null \
    || { apt-get update --quiet \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends python3-venv >/dev/null \
    && rm -rf /var/lib/apt/lists/*; }
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore \
    PIP_CONFIG_FILE=/run/secrets/pip.conf
WORKDIR /source
COPY pyproject.toml constraints.txt docker/pins.txt docker/dependencies.py ./
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=certificates.pem \
    python3 dependencies.py list --extras solver > requirements.txt && python3 -m venv /opt/pip \
    && /opt/pip/bin/pip --python /opt/caloscale/bin/python install --quiet --no-warn-script-location --root /packages \
    --requirement requirements.txt --constraint constraints.txt --constraint pins.txt

FROM ${TRAINER_IMAGE} AS solver
USER 0:0
# The mpi-operator mounts a key of the job's own at /home/caloscale/.ssh. It is the key of the user and of all hosts, so
# each pod knows the others by it. Nobody has a password, and sshd has no rights of root.
RUN apt-get update --quiet \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends openssh-client openssh-server >/dev/null \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log \
    /etc/ssh/ssh_host_* \
    && sed -i 's|^caloscale:.*|caloscale:x:65532:65532:caloscale:/home/caloscale:/bin/sh|' /etc/passwd \
    && mkdir -p /home/caloscale/.ssh /etc/caloscale \
    && printf '%s\n' 'Port 2222' 'HostKey /home/caloscale/.ssh/id_rsa' 'PidFile none' 'StrictModes no' 'UsePAM no' \
    'AuthorizedKeysFile /home/caloscale/.ssh/authorized_keys' 'AuthenticationMethods publickey' 'AllowUsers caloscale' \
    'DisableForwarding yes' 'PrintMotd no' > /etc/caloscale/sshd_config \
    && printf '%s\n' 'Host *' '  Port 2222' '  IdentityFile /home/caloscale/.ssh/id_rsa' '  BatchMode yes' \
    '  UserKnownHostsFile /dev/null' '  GlobalKnownHostsFile /dev/null' '  StrictHostKeyChecking yes' \
    "  KnownHostsCommand /bin/sed 's/^/* /' /home/caloscale/.ssh/id_rsa.pub" '  LogLevel ERROR' \
    '  ConnectionAttempts 60' > /etc/ssh/ssh_config.d/caloscale.conf
USER 65532:65532
COPY --from=packages /packages /
LABEL org.opencontainers.image.title="caloscale solver"
