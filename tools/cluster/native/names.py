"""DNS of a cluster of real nodes: CoreDNS as a process of this machine behind the usual service."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from caloscale.ports import free_ports
from tools.cluster.daemons import Daemon, answers
from tools.cluster.native.configuration import CLUSTER_DNS, CLUSTER_DOMAIN
from tools.cluster.servers import Servers

SERVICE = "kube-dns"


def start_dns(servers: Servers, address: str) -> tuple[Daemon, list[dict[str, Any]]]:
    """CoreDNS, not yet started, that answers on `address`, and the objects by which pods find it.

    It knows the cluster's names only: pods reach nothing outside this machine.
    """
    port, ready = free_ports(2)
    path = servers.folder / "Corefile"
    path.write_text(corefile(address, port, ready, servers.kubeconfig), encoding="utf-8")
    daemon = servers.daemon("coredns", ["-conf", str(path)], lambda: answers(f"http://127.0.0.1:{ready}/ready"))
    return daemon, dns_objects(address, port)


def corefile(address: str, port: int, ready: int, kubeconfig: Path) -> str:
    """CoreDNS' configuration."""
    return f""".:{port} {{
  bind {address}
  errors
  ready 127.0.0.1:{ready}
  kubernetes {CLUSTER_DOMAIN} in-addr.arpa ip6.arpa {{
    kubeconfig {kubeconfig}
    pods insecure
    ttl 5
  }}
}}
"""


def dns_objects(address: str, port: int) -> list[dict[str, Any]]:
    """The service `kube-dns`."""
    ports = {"dns": ("UDP", 53, port), "dns-tcp": ("TCP", 53, port)}
    return host_service(SERVICE, "kube-system", address, ports, clusterIP=CLUSTER_DNS)


def host_service(
    name: str, namespace: str, address: str, ports: Mapping[str, tuple[str, int, int]], **spec: Any
) -> list[dict[str, Any]]:
    """A service whose only endpoint is a process of this machine; ports by name: protocol, own, that of the process."""
    metadata = {"name": name, "namespace": namespace}
    own = [{"name": each, "protocol": kind, "port": at, "targetPort": to} for each, (kind, at, to) in ports.items()]
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": own, **spec}},
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**metadata, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "ports": [{"name": each, "protocol": kind, "port": to} for each, (kind, _, to) in ports.items()],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        },
    ]
