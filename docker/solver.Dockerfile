# Launcher and workers of an MPIJob (caloscale solve --mpijob): the trainer with Open MPI, mpi4py and ssh. Two steps:
#   make images TARGETS=trainer-cpu EXTRAS=solver
#   docker build -f docker/solver.Dockerfile --build-arg TRAINER_IMAGE=caloscale/trainer:0.1.0 -t caloscale/solver:0.1.0 .
ARG TRAINER_IMAGE=caloscale/trainer:0.1.0
FROM ${TRAINER_IMAGE} AS solver
USER 0:0
# The trainer must have the extra `solver`.
RUN python3 -c 'import mpi4py' && command -v mpiexec prted \
    && apt-get update --quiet \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends openssh-client openssh-server >/dev/null \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log /etc/ssh/ssh_host_* \
    && sed -i 's|^caloscale:.*|caloscale:x:65532:65532:caloscale:/home/caloscale:/bin/sh|' /etc/passwd \
    && mkdir -p /home/caloscale/.ssh /etc/caloscale
# The mpi-operator mounts a key of the job's own at /home/caloscale/.ssh. It is the key of the user and of all hosts, so
# each pod knows the others by it. Nobody has a password, and sshd has no rights of root.
RUN printf '%s\n' 'Port 2222' 'HostKey /home/caloscale/.ssh/id_rsa' 'PidFile none' 'StrictModes no' 'UsePAM no' \
    'AuthorizedKeysFile /home/caloscale/.ssh/authorized_keys' 'AuthenticationMethods publickey' 'AllowUsers caloscale' \
    'DisableForwarding yes' 'PrintMotd no' > /etc/caloscale/sshd_config \
    && printf '%s\n' 'Host *' '  Port 2222' '  IdentityFile /home/caloscale/.ssh/id_rsa' '  BatchMode yes' \
    '  UserKnownHostsFile /dev/null' '  GlobalKnownHostsFile /dev/null' '  StrictHostKeyChecking yes' \
    "  KnownHostsCommand /bin/sed 's/^/* /' /home/caloscale/.ssh/id_rsa.pub" '  LogLevel ERROR' \
    '  ConnectionAttempts 60' > /etc/ssh/ssh_config.d/caloscale.conf
USER 65532:65532
LABEL org.opencontainers.image.title="caloscale solver"
