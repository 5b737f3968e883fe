"""Ports that are free, and stay it beside others."""

import socket
from pathlib import Path

import pytest

from caloscale import ports
from tools.cluster import upstream
from tools.cluster.errors import ClusterError


def test_all_are_different_and_can_be_listened_on():
    found = ports.free_ports(50)
    assert len(set(found)) == 50
    servers = [socket.create_server(("127.0.0.1", port)) for port in found]
    for server in servers:
        server.close()


def test_none_is_one_that_an_outgoing_connection_is_given():
    setting = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if not setting.exists():
        pytest.skip("not Linux")
    first = int(setting.read_text().split()[0])
    assert max(ports.free_ports(200)) < first


def test_one_that_is_taken_is_not_given(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        monkeypatch.setattr(ports, "_FIRST", taken - 1)
        monkeypatch.setattr(ports, "_LAST", taken + 1)
        assert not any(taken in ports.free_ports(1) for _ in range(20))


def test_a_program_that_needs_one_port_is_refused_where_it_is_taken(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not ports.is_free(port) and not ports.is_free(port, "")
        monkeypatch.setattr(upstream, "MPI_PORT", port)
        with pytest.raises(ClusterError, match=f"port {port}, which the mpi-operator"):
            upstream._mpi_operator(None, None, None)
    assert ports.is_free(port) and ports.is_free(port, "")
