"""Ports for a temporary deployment."""

import contextlib
import random
import socket

LOWEST, HIGHEST = 15_000, 32_000
"""Range of ports, below those that the kernel gives to outgoing connections (from 32768 on): one of
these may take a port between the moment it is chosen and the moment its server binds it."""


def free_ports(count: int) -> tuple[int, ...]:
    """Return consecutive ports of 127.0.0.1 that nobody listens on now."""
    while True:
        first = random.randrange(LOWEST, HIGHEST - count)
        ports = tuple(range(first, first + count))
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in ports:
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return ports
