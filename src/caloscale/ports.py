"""Ports of this machine for processes that connect to each other."""

import random
import socket

# Below those that Linux gives to outgoing connections (from 32,768 on) and Kubernetes to services (from 30,000 on).
_FIRST, _LAST = 11_000, 29_999


def free_ports(count: int) -> list[int]:
    """Different ports of 127.0.0.1 that are free now. Nobody holds them, so they are chosen where few look for one."""
    chance = random.SystemRandom()  # no seed: others choose at the same time
    chosen: set[int] = set()
    while len(chosen) < count:
        port = chance.randint(_FIRST, _LAST)
        if is_free(port):
            chosen.add(port)
    return list(chosen)


def is_free(port: int, address: str = "127.0.0.1") -> bool:
    """Whether nobody listens on a port of an address; empty: of all addresses of this machine."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what has ended keeps it from nobody
        try:
            one.bind((address, port))
        except OSError:
            return False
    return True
