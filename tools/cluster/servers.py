"""The four programs of a control plane and kwok: with which options they start, and when they are ready."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import yaml

from caloscale.ports import free_ports
from tools.cluster.certificates import Authority, write_kubeconfig
from tools.cluster.daemons import Daemon, answers
from tools.cluster.pools import MARK_SELECTOR
from tools.cluster.programs import program

HERE = Path(__file__).parent
LOOPBACK = "127.0.0.1"
SERVICES = "10.96.0.0/16"
SERVICE_HOSTS = (
    "localhost", "127.0.0.1", "10.96.0.1", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)  # fmt: skip


TOLERATION_SECONDS = 3
"""How long pods stay on a node that is not ready (Kubernetes: 300)."""
GRACE_SECONDS = 40
"""Silence after which a node counts as lost, as Kubernetes has it."""


class Servers:
    """Keys, ports and folders of one control plane, and its programs as daemons that are not yet started.

    Every port is on 127.0.0.1 (the API server's: on `address`), chosen when the object is made. Real nodes cannot reach
    127.0.0.1, so that there kwok makes fake ones.
    """

    def __init__(self, folder: Path, address: str = LOOPBACK, grace_seconds: int = GRACE_SECONDS) -> None:
        self.folder, self._address, self._grace_seconds = folder, address, grace_seconds
        self.has_fake_nodes = address == LOOPBACK
        self.log_folder = folder / "logs"
        self.log_folder.mkdir(parents=True)
        names = ("etcd", "etcd_peer", "api", "controller", "scheduler", "kwok")
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.url = f"https://{address}:{self.ports['api']}"
        self.authority = Authority(folder / "pki", "caloscale-ca")
        self._tokens = self.authority.issue("service-accounts", "service-accounts")
        self._kubelet = self.authority.issue("kubelet", "kubelet", hosts=SERVICE_HOSTS)
        hosts = sorted({*SERVICE_HOSTS, address})
        self._api = self.authority.issue("kube-apiserver", "kube-apiserver", hosts=hosts)
        self._admin = self.authority.issue("admin", "admin", groups=["system:masters"])
        self.kubeconfig = write_kubeconfig(folder / "kubeconfig", self.url, self.authority, self._admin)
        self.audit_log = self.log_folder / "audit.jsonl"
        """What the operator asked of the API server (audit-policy.yaml), a JSON line each."""

    def daemon(self, name: str, command: list[str], ready: Callable[[], bool], **environment: str) -> Daemon:
        """A program of ours with its log in this control plane's folder."""
        # Memory is collected at four times the live heap, not at twice: these programs mostly make garbage. The API
        # server of 10,000 runs would need more memory than a machine of 24 GiB has.
        variables = {"GOGC": "300", "GOMEMLIMIT": str(psutil.virtual_memory().total // 3), **environment}
        return Daemon(name, [str(program(name)), *command], self.log_folder / f"{name}.log", ready, variables)

    def etcd(self) -> Daemon:
        """The store. It does not wait for the disk: what it holds ends with the control plane."""
        client, peer = (f"http://127.0.0.1:{self.ports[name]}" for name in ("etcd", "etcd_peer"))
        command = ["--name=one", f"--data-dir={self.folder / 'etcd'}", f"--initial-cluster=one={peer}"]
        command += [f"--listen-client-urls={client}", f"--advertise-client-urls={client}"]
        command += [f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"]
        command += ["--unsafe-no-fsync", "--log-level=warn", "--quota-backend-bytes=4294967296"]
        return self.daemon("etcd", command, partial(answers, f"{client}/readyz"))

    def api(self) -> Daemon:
        """The API server, with RBAC, pod security, CEL rules and admission policies as a cluster has them."""
        options = {
            "etcd-servers": f"http://127.0.0.1:{self.ports['etcd']}",
            "bind-address": self._address,
            "advertise-address": self._address,
            "secure-port": self.ports["api"],
            # Pods find the server through the service `kubernetes`, whose endpoint cannot be 127.0.0.1.
            "endpoint-reconciler-type": "none" if self.has_fake_nodes else "lease",
            "tls-cert-file": self._api.certificate,
            "tls-private-key-file": self._api.key,
            "client-ca-file": self.authority.certificate,
            "service-account-key-file": self._tokens.certificate,
            "service-account-signing-key-file": self._tokens.key,
            "service-cluster-ip-range": SERVICES,
            "kubelet-client-certificate": self._admin.certificate,
            "kubelet-client-key": self._admin.key,
            "audit-policy-file": HERE / "audit-policy.yaml",
            "audit-log-path": self.audit_log,
            "default-not-ready-toleration-seconds": TOLERATION_SECONDS,
            "default-unreachable-toleration-seconds": TOLERATION_SECONDS,
        }
        ready = partial(answers, f"{self.url}/readyz", (self._admin.certificate, self._admin.key))
        return self.daemon("kube-apiserver", _options("kube-apiserver", options), ready)

    def controllers(self) -> Daemon:
        """The controller manager."""
        options = {
            **self._secured("system:kube-controller-manager", "controller"),
            "service-account-private-key-file": self._tokens.key,
            "root-ca-file": self.authority.certificate,
            "client-ca-file": self.authority.certificate,
            "cluster-signing-cert-file": self.authority.certificate,
            "cluster-signing-key-file": self.authority.files.key,
            "service-cluster-ip-range": SERVICES,
            "node-monitor-period": f"{max(1, self._grace_seconds // 120)}s",
            "node-monitor-grace-period": f"{self._grace_seconds}s",
        }
        ready = self._healthy("controller", "/healthz")
        return self.daemon("kube-controller-manager", _options("kube-controller-manager", options), ready)

    def scheduler(self) -> Daemon:
        """The scheduler."""
        options = self._secured("system:kube-scheduler", "scheduler")
        return self.daemon("kube-scheduler", _options("kube-scheduler", options), self._healthy("scheduler", "/readyz"))

    def kwok(self) -> Daemon:
        """kwok: keeps fake nodes alive and lets their pods run and end."""
        logs, configuration = self.folder / "fake-pod.log", self.folder / "stages.yaml"
        # In the form in which a container runtime writes logs.
        logs.write_text("2026-01-01T00:00:00.000000000Z stdout F a fake pod writes no log\n", encoding="utf-8")
        stages = (HERE / "stages.yaml").read_text(encoding="utf-8")
        configuration.write_text(stages.replace("LOGS_FILE", str(logs)), encoding="utf-8")
        port = self.ports["kwok"]
        options = {
            "kubeconfig": self.kubeconfig,
            "config": configuration,
            "manage-nodes-with-annotation-selector": MARK_SELECTOR,
            "node-port": port,
            "node-lease-duration-seconds": self._grace_seconds,
            "server-address": f"127.0.0.1:{port}",
            "tls-cert-file": self._kubelet.certificate,
            "tls-private-key-file": self._kubelet.key,
        }
        work = str(self.folder / "kwok")  # else in the home
        ready = partial(answers, f"http://127.0.0.1:{port}/healthz")
        return self.daemon("kwok", _options("kwok", options), ready, KWOK_WORKDIR=work)

    def _secured(self, user: str, port: str) -> dict[str, object]:
        pair = self.authority.issue(user.replace(":", "-"), user)
        kubeconfig = write_kubeconfig(self.folder / "kubeconfigs" / pair.key.stem, self.url, self.authority, pair)
        return {
            "kubeconfig": kubeconfig,
            "authentication-kubeconfig": kubeconfig,
            "authorization-kubeconfig": kubeconfig,
            "secure-port": self.ports[port],
        }

    def _healthy(self, port: str, path: str) -> Callable[[], bool]:
        return partial(answers, f"https://127.0.0.1:{self.ports[port]}{path}")


def _options(name: str, options: dict[str, object]) -> list[str]:
    fixed = yaml.safe_load((HERE / "options.yaml").read_text(encoding="utf-8")).get(name, {})
    return [f"--{option}={value}" for option, value in (fixed | options).items()]
