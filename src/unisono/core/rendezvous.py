"""Rendezvous through a store: ranks exchange their hosts, and agree on a job and a secret."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
from pathlib import Path
from typing import Any

from unisono.core import environment
from unisono.core.environment import Launch
from unisono.errors import LaunchError

__all__ = ["exchange_hosts", "identity", "own_host"]


def identity() -> str:
    """An identity of this host: equal for processes that can share memory, and for no others.

    Containers on one machine may have networks and process numbers of their own; then they are
    different hosts.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        spaces = [Path(f"/proc/self/ns/{kind}").stat().st_ino for kind in ("net", "pid")]
    except OSError:
        return socket.gethostname()
    return "-".join([boot, *map(str, spaces)])


def own_host() -> str:
    """This host's identity and its name, as `Launch.hosts` has them for each rank."""
    return f"{identity()} {socket.gethostname()}"


def exchange_hosts(store: Any, rank: int, size: int, source: str) -> Launch:
    """Tell the other ranks our host, and learn theirs with the name and the secret of a new job.

    The store needs set, get and add, and its get must wait for a key. Everyone who reaches the
    store can read it, so the secret goes there only if UNISONO_SECRET gives none.
    """
    own = os.environ.get("UNISONO_JOB", "")  # keeps jobs apart that share a store by mistake
    given = environment.given_secret()
    # A store may outlive a job (torchrun's does), and then holds what an earlier one wrote. No rank
    # goes on before all have come, so that counting them tells jobs apart.
    turn = f"{own}/{(store.add(f'{own}/arrived', 1) - 1) // size}"
    store.set(f"{turn}/host/{rank}", own_host())
    if rank == 0:
        hosts = [store.get(f"{turn}/host/{each}").decode() for each in range(size)]
        job = secrets.token_hex(16)
        secret = f"given {_proof(given, job)}" if given else f"sent {secrets.token_hex(32)}"
        store.set(f"{turn}/job", "\n".join([job, secret, *hosts]))
    job, secret, *hosts = store.get(f"{turn}/job").decode().split("\n")
    here = [each for each in range(size) if hosts[each].split()[0] == hosts[rank].split()[0]]
    return Launch(
        rank,
        size,
        here.index(rank),
        len(here),
        f"store-{job}",
        source,
        _secret(given, job, secret),
        store,
        tuple(hosts),
    )


def _proof(given: bytes, job: str) -> str:
    """Proves to ranks that they were given the same secret, and tells others nothing."""
    return hmac.new(given, f"same {job}".encode(), hashlib.sha256).hexdigest()


def _secret(given: bytes, job: str, announced: str) -> bytes:
    """The secret of this job: made from the given one, or sent by rank 0."""
    kind, value = announced.split()
    if (kind == "given") != bool(given):
        with_it, without = ("rank 0", "this rank") if kind == "given" else ("this rank", "rank 0")
        raise LaunchError(
            f"{with_it} was started with UNISONO_SECRET, and {without} was not; set it on all ranks"
        )
    if kind == "sent":
        return bytes.fromhex(value)
    if not hmac.compare_digest(value, _proof(given, job)):
        raise LaunchError("UNISONO_SECRET differs from that of rank 0; set it alike on all ranks")
    return hmac.new(given, f"job {job}".encode(), hashlib.sha256).digest()
