"""Links with a delay, for hosts.py: a program that forwards packets between their ends."""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import selectors
import subprocess
import sys
import time


def _forward(delay: float, links: int) -> None:
    """Forward packets between both ends of each link, each after its delay.

    Kernels have netem for this, but small ones are built without it.
    """
    selector = selectors.DefaultSelector()
    for index in range(links):
        ends = []
        for name in (f"port{index}", f"end{index}"):
            end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            # TUNSETIFF with IFF_TAP and IFF_NO_PI: plain Ethernet packets.
            request = name.encode().ljust(16, b"\0") + (0x1002).to_bytes(2, sys.byteorder)
            fcntl.ioctl(end, 0x400454CA, request.ljust(40, b"\0"))
            # Large packets, because each one costs this program its time.
            subprocess.run(["ip", "link", "set", name, "mtu", "9000"], check=True)
            ends.append(end)
        selector.register(ends[0], selectors.EVENT_READ, ends[1])
        selector.register(ends[1], selectors.EVENT_READ, ends[0])
    print("ready", flush=True)
    under_way: collections.deque[tuple[float, int, bytes]] = collections.deque()
    while True:
        left = under_way[0][0] - time.monotonic() if under_way else None
        for key, _ in selector.select(None if left is None else max(0.0, left)):
            with contextlib.suppress(OSError):  # no more packets, or the end is down
                for _ in range(64):
                    packet = os.read(key.fd, 16384)
                    under_way.append((time.monotonic() + delay, key.data, packet))
        while under_way and under_way[0][0] <= time.monotonic():
            _, target, packet = under_way.popleft()
            with contextlib.suppress(OSError):  # a link that is down loses packets
                os.write(target, packet)


if __name__ == "__main__":
    _forward(float(sys.argv[1]), int(sys.argv[2]))
