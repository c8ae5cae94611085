"""A network cable between this machine and a network namespace, with the faults of real ones.

Two TUN devices, whose packets pass through this process: it delays, loses or cuts. (netem, which
does this in the kernel, is a module that many kernels lack.) Losses come from a seed.
"""

import asyncio
import contextlib
import fcntl
import os
import random
import struct
import subprocess

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MTU = 1500


class LossyLink:
    """`address` is the far end's; `inside` stands in front of the command line of who is there."""

    def __init__(self):
        self.name = f"far-{os.getpid()}"
        number = os.getpid() % (1 << 14)  # 198.19.0.0/16: the other half of RFC 2544's
        network = f"198.19.{number >> 6}"
        self.here, self.address = (f"{network}.{(number % 64) * 4 + i}" for i in (1, 2))
        self.inside = ("ip", "netns", "exec", self.name)
        self.delay, self.loss, self.cut = 0.0, 0.0, False
        self.carried = self.lost = 0
        self._random = random.Random(1)
        self._ends = []

    async def __aenter__(self):
        loop = asyncio.get_running_loop()
        _run("ip", "netns", "add", self.name)
        try:
            for which in ("h", "f"):
                self._ends.append(_tun(f"{which}{os.getpid()}"))
            far = f"f{os.getpid()}"
            _run("ip", "link", "set", far, "netns", self.name)
            self._up((), f"h{os.getpid()}", self.here, self.address)
            self._up(self.inside, far, self.address, self.here)
            for end, other in (self._ends, self._ends[::-1]):
                loop.add_reader(end, self._carry, end, other)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_):
        for end in self._ends:
            asyncio.get_running_loop().remove_reader(end)
            os.close(end)
        _run("ip", "netns", "del", self.name)

    @staticmethod
    def _up(inside, device, address, peer):
        _run(*inside, "ip", "address", "add", address, "peer", peer, "dev", device)
        _run(*inside, "ip", "link", "set", device, "up")

    def _carry(self, end, other):
        packet = os.read(end, MTU + 64)
        if self.cut or self._random.random() < self.loss:
            self.lost += 1
            return
        self.carried += 1
        asyncio.get_running_loop().call_later(self.delay, _write, other, packet)


def _tun(name):
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH14x", name.encode(), IFF_TUN | IFF_NO_PI))
    return end


def _write(end, packet):
    with contextlib.suppress(OSError):  # the far end has gone, or its queue is full: a loss
        os.write(end, packet)


def _run(*argv):
    subprocess.run(argv, check=True, capture_output=True)
