"""Which ranks share a host: they tell each other in a store, and trust no variables."""

from __future__ import annotations

import secrets
import socket
from pathlib import Path
from typing import Any

from unisono.core.rendezvous import Launch

__all__ = ["identity", "meet"]


def identity() -> str:
    """What is the same for processes that can share memory and find each other, and only for them.

    Containers on one machine may have networks and process numbers of their own; then they are
    different hosts.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in ("net", "pid")]
    except OSError:
        return socket.gethostname()
    return "-".join([boot, *map(str, spaces)])


def meet(store: Any, rank: int, size: int, source: str) -> Launch:
    """Tell the other ranks where we are, and learn the name and the secret of a new job.

    Any store will do that has set, get and add, and whose get waits for a key.
    """
    # A store may outlive a job (torchrun's does), and then holds what an earlier one wrote. Nobody
    # goes on before all have come, so that counting tells them apart.
    turn = (store.add("come", 1) - 1) // size
    store.set(f"{turn}/host/{rank}", f"{identity()} {socket.gethostname()}")
    if rank == 0:
        told = [store.get(f"{turn}/host/{each}").decode() for each in range(size)]
        store.set(f"{turn}/job", "\n".join([secrets.token_hex(16), secrets.token_hex(32), *told]))
    job, secret, *told = store.get(f"{turn}/job").decode().split("\n")
    here = [each for each in range(size) if told[each].split()[0] == told[rank].split()[0]]
    return Launch(
        rank,
        size,
        here.index(rank),
        len(here),
        f"store-{job}",
        source,
        bytes.fromhex(secret),
        store,
        tuple(told),
    )
