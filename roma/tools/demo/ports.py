"""Ports for temporary deployments.

A free port can be taken between the moment it is chosen and the moment its server binds it, and
again while that server restarts. Each process therefore takes its ports from a block of its own.
"""

import contextlib
import functools
import itertools
import random
import socket
from collections.abc import Iterator

LOWEST, HIGHEST = 15_000, 32_000
"""Range of all blocks, below the ports that the kernel gives to outgoing connections (from 32768
on)."""

BLOCK = 250
"""Ports per block; the first is bound for as long as its process lives, and so marks the block."""


def free_ports(count: int) -> tuple[int, ...]:
    """Return consecutive ports of 127.0.0.1 that nobody listens on now.

    No other process gets them from this function while this process runs, and this process gets
    them again only after the rest of its block.

    Raises:
        ValueError: if count exceeds a block's ports.

    """
    if count >= BLOCK:
        raise ValueError(f"count = {count}: at most {BLOCK - 1} ports")
    first, cursor = _block()
    while True:
        ports = tuple(first + 1 + (next(cursor) % (BLOCK - 1)) for _ in range(count))
        if ports[-1] - ports[0] != count - 1:
            continue  # the end of the block and its beginning
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in ports:
                probe = held.enter_context(socket.socket())
                # As every server binds: a port is not taken by a closed connection's TIME_WAIT.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
            return ports


@functools.cache
def _block() -> tuple[int, Iterator[int]]:
    while True:
        first = random.randrange(LOWEST, HIGHEST, BLOCK)
        with socket.socket() as mark, contextlib.suppress(OSError):
            mark.bind(("127.0.0.1", first))
            mark.detach()  # only the end of the process frees the block
            return first, itertools.count()
