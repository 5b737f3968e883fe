"""Addresses and cables of real nodes."""

import ipaddress

import pytest

from tools.cluster.native.network import MOST_NETWORKS, MOST_NODES, Network, free_networks

LONGEST_INTERFACE_NAME = 15


def test_no_address_is_given_twice() -> None:
    """Nodes, pods and machines of all clusters that may live side by side."""
    networks = [Network(index) for index in range(MOST_NETWORKS)]
    hosts = [network.host_address for network in networks]
    hosts += [network.node_address(number) for network in networks for number in range(1, MOST_NODES + 1)]
    assert len(set(hosts)) == len(hosts)
    ranges = [ipaddress.ip_network(network.pod_range(n)) for network in networks for n in range(1, MOST_NODES + 1)]
    assert not any(first.overlaps(second) for first, second in zip(sorted(ranges), sorted(ranges)[1:], strict=False))
    assert all(address.is_private for address in map(ipaddress.ip_address, hosts))
    for network in networks:
        nodes, pods = network.ranges
        for number in range(1, MOST_NODES + 1):
            assert ipaddress.ip_address(network.node_address(number)) in nodes
            assert ipaddress.IPv4Network(network.pod_range(number)).subnet_of(pods)
            assert len(network.cable(number)) <= LONGEST_INTERFACE_NAME


def test_node_numbers_have_limits() -> None:
    with pytest.raises(ValueError, match="1 to 64, not 65"):
        Network(0).node_address(65)


def test_a_used_range_is_passed_over() -> None:
    routes = [{"dst": "default", "dev": "eth0"}]
    routes += [{"dst": each, "dev": "eth0"} for each in ("172.30.101.0/24", "10.202.7.9", "192.168.0.0/16")]
    left = {"dst": "172.30.103.0/24", "dev": "caloscale3"}  # of a cluster whose program was killed
    assert [network.index for network in free_networks([*routes, left])] == [0, 3, 4, 5, 6, 7]
    # A private network of a company.
    assert free_networks([{"dst": "172.16.0.0/12", "dev": "eth0"}]) == []
