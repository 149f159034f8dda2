"""`unisono doctor --network`: measure and check how the hosts of a job reach each other.

Every rank of a job runs it. Names are checked before any rank waits for another, because a host
that resolves its own name to 127.0.1.1 is a common reason why ranks of several hosts never connect.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import ipaddress
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from unisono.core import buffers, dispatch, environment, groups, objects, rendezvous
from unisono.core.environment import Launch
from unisono.core.groups import Group
from unisono.errors import LaunchError
from unisono.tools.formatting import bandwidth, duration, plural, rank_list
from unisono.tools.table import table, terminal_columns

__all__ = ["HostPair", "NetworkHost", "main", "suspicious_names"]

_JOIN_TIMEOUT = 60.0  # seconds for all ranks to join, unless UNISONO_TIMEOUT is set
_SMALL = 8
_LARGE = 8 << 20
_SIOCGIFADDR = 0x8915  # Linux: the address of an interface
_WARM_UP = 3  # rounds of the small message that do not count
#: For each size: the most rounds, and the seconds that they should take together at most.
_ROUNDS = {_SMALL: (300, 0.5), _LARGE: (8, 1.5)}


@dataclass(frozen=True)
class NetworkHost:
    """A host of the job: its name, what that name resolves to on it, and its ranks."""

    name: str
    addresses: tuple[str, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class HostPair:
    """What one rank of each of two hosts measured: seconds, and bytes per second."""

    hosts: tuple[str, str]
    ranks: tuple[int, int]
    latency: float
    bandwidth: float


def main(arguments: argparse.Namespace) -> int:
    """Measure, and print on rank 0; return 1 if a name is suspicious or ranks cannot connect."""
    launch = environment.find()
    if launch.size == 1:
        raise LaunchError(
            "--network measures between the hosts of a job, and this process is alone; start it "
            "on several hosts: torchrun --nnodes 2 ... --no-python unisono doctor --network"
        )
    warnings = suspicious_names(launch)
    _warn(warnings if launch.local_rank == 0 else [])
    try:
        world = groups.init(timeout=_join_timeout())
        findings = _examine(world, warnings)
        groups.close()
    except RuntimeError as error:  # ours, or torch's if its store fails
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        if launch.rank == 0 and arguments.json:
            print(json.dumps({"warnings": warnings, "error": reason}, indent=2))
        who = f"rank {launch.rank} on {socket.gethostname()}"
        hint = "; see the warnings above" if warnings else ""
        print(f"unisono: {who}: {reason}{hint}", file=sys.stderr)
        return 1
    if launch.rank == 0:
        print(json.dumps(findings, indent=2) if arguments.json else "\n".join(_lines(findings)))
    return 1 if findings["warnings"] and launch.rank == 0 else 0


def _join_timeout() -> float:
    return environment.timeout(None if os.environ.get("UNISONO_TIMEOUT") else _JOIN_TIMEOUT)


# ---- names ---------------------------------------------------------------------------------------


def suspicious_names(launch: Launch) -> list[str]:
    """Return what is wrong with this host's names, as far as one rank alone can tell."""
    if launch.one_host:
        return []  # on one host a loopback address works
    name = socket.gethostname()
    found = []
    addresses = _addresses(name)
    loops = [address for address in addresses if _is_loopback(address)]
    if not addresses:
        found.append(
            f"host {name!r} cannot resolve its own name, so other hosts get no address for it. "
            f"{_advice(name)}"
        )
    elif loops:
        found.append(
            f"host {name!r} resolves its own name to {loops[0]}, a loopback address: a host that "
            f"is given this address reaches only itself, and its ranks never connect. "
            f"{_advice(name)}"
        )
    master = os.environ.get("MASTER_ADDR", "")
    # On the host of rank 0 a loopback address works; on the others it is wrong.
    if master and launch.rank != launch.local_rank:
        loops = [address for address in _addresses(master) if _is_loopback(address)]
        if loops:
            found.append(
                f"on host {name!r} MASTER_ADDR is {master!r}, which is {loops[0]} there, a "
                "loopback address, but rank 0 is on another host; set MASTER_ADDR to the network "
                "address of rank 0's host"
            )
    return found


def _advice(name: str) -> str:
    address = _network_address()
    own = f"its network address, {address}," if address else "its network address"
    return (
        f"Give {name!r} {own} in its /etc/hosts, or set GLOO_SOCKET_IFNAME to the interface with "
        "that address"
    )


def _network_address() -> str | None:
    """Return this host's address in the network: the one that it would reach the master from."""
    master = os.environ.get("MASTER_ADDR", "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        found = []
        with contextlib.suppress(OSError):
            probe.connect((master, 9))  # sends nothing
            found.append(str(probe.getsockname()[0]))
        # If the master is this host under a loopback name, ask the interfaces.
        for _, name in socket.if_nameindex():
            request = name.encode()[:15].ljust(40, b"\0")
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe, _SIOCGIFADDR, request)
                found.append(socket.inet_ntoa(answer[20:24]))
    return next((address for address in found if not _is_loopback(address)), None)


def _addresses(name: str) -> tuple[str, ...]:
    try:
        entries = socket.getaddrinfo(name, None)
    except OSError:
        return ()
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in entries))


def _is_loopback(address: str) -> bool:
    """Tell whether an address reaches only the host that uses it.

    >>> [_is_loopback(address) for address in ("127.0.1.1", "::1", "::ffff:127.0.0.1", "10.0.0.1")]
    [True, True, True, False]
    """
    bare = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(bare, "ipv4_mapped", None)
    return (mapped or bare).is_loopback


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        print(f"unisono: warning: {warning}", file=sys.stderr, flush=True)


# ---- measuring -----------------------------------------------------------------------------------


def _examine(world: Group, warnings: list[str]) -> dict[str, Any]:
    """Measure once the ranks have joined; all ranks return the same, except for the pairs."""
    name = socket.gethostname()
    gathered = objects.all_gather(world, (rendezvous.identity(), name, _addresses(name), warnings))
    ranks: dict[str, list[int]] = {}
    for rank, (identity, *_) in enumerate(gathered):
        ranks.setdefault(identity, []).append(rank)
    hosts = [
        NetworkHost(gathered[local[0]][1], gathered[local[0]][2], tuple(local))
        for local in ranks.values()
    ]
    checks = world.rank == ranks[rendezvous.identity()][0]  # one rank of each host checks
    found = _misleading([host.name for host in hosts]) if checks else []
    _warn(found)
    every = [line for *_, lines in gathered for line in lines]
    every += [line for lines in objects.all_gather(world, found) for line in lines]
    mine = [asdict(pair) for pair in _measure(world, hosts)]
    pairs = objects.gather(world, mine, 0) or []
    return {
        "engine": world.engine.name if world.engine is not None else None,
        "hosts": [asdict(host) for host in hosts],
        "pairs": [pair for each in pairs for pair in each],
        "warnings": list(dict.fromkeys(every)),  # all ranks of a host found the same
        "error": None,
    }


def _misleading(names: Sequence[str]) -> list[str]:
    """Return what is wrong with the addresses that this host has for other hosts' names."""
    own = socket.gethostname()
    found = []
    for name in names:
        loops = [address for address in _addresses(name) if _is_loopback(address)]
        if loops and name != own:
            found.append(
                f"host {own!r} resolves {name!r}, which is another host, to {loops[0]}, a loopback "
                f"address; give {name!r} its network address in the /etc/hosts of {own!r}"
            )
    return found


def _measure(world: Group, hosts: Sequence[NetworkHost]) -> Iterator[HostPair]:
    """Exchange messages between one rank of each host, pair by pair, while all others wait."""
    for index, first in enumerate(hosts):
        for second in hosts[index + 1 :]:
            dispatch.barrier(world)
            ranks = (first.ranks[0], second.ranks[0])
            if world.rank not in ranks:
                continue
            leads = world.rank == ranks[0]
            peer = ranks[1] if leads else ranks[0]
            short = _ping_pong(world, peer, leads, _SMALL)
            long = _ping_pong(world, peer, leads, _LARGE)
            if leads:
                latency = statistics.median(short) / 2
                names = (_label(first, hosts), _label(second, hosts))
                yield HostPair(names, ranks, latency, _LARGE * 2 / min(long))
    dispatch.barrier(world)


def _ping_pong(world: Group, peer: int, leads: bool, size: int) -> list[float]:
    """Return the seconds of each round trip. The rank that leads decides how many there are."""
    data = buffers.view(np.zeros(size, np.uint8))
    rounds = np.zeros(1, np.int64)

    steps = [dispatch.send, dispatch.recv] if leads else [dispatch.recv, dispatch.send]

    def round_trip() -> float:
        began = time.perf_counter()
        for step in steps:
            step(world, data, peer)
        return time.perf_counter() - began

    for _ in range(_WARM_UP if size == _SMALL else 1):
        lasted = round_trip()
    if leads:
        most, seconds = _ROUNDS[size]
        rounds[0] = max(1, min(most, int(seconds / lasted)))
    steps[0](world, buffers.view(rounds), peer)
    return [round_trip() for _ in range(int(rounds[0]))]


def _label(host: NetworkHost, hosts: Sequence[NetworkHost]) -> str:
    """Return a host's name, with a rank if several hosts (containers) share the name."""
    same = [other for other in hosts if other.name == host.name]
    return host.name if len(same) == 1 else f"{host.name} (rank {host.ranks[0]})"


# ---- the report ----------------------------------------------------------------------------------


def _lines(findings: dict[str, Any]) -> Iterator[str]:
    hosts = findings["hosts"]
    ranks = plural(sum(len(host["ranks"]) for host in hosts), "rank")
    yield f"engine {findings['engine']}: {ranks} on {plural(len(hosts), 'host')}"
    for host in hosts:
        known = ", ".join(host["addresses"]) or "an unknown address"
        yield f"  {host['name']} ({known}): ranks {rank_list(host['ranks'])}"
    if len(hosts) == 1:
        yield f"all {ranks} are on one host, so there is no network between them to measure"
        return
    rows = [("from", "to", "latency", "bandwidth")]
    rows += [
        (*pair["hosts"], duration(pair["latency"]), bandwidth(pair["bandwidth"]))
        for pair in findings["pairs"]
    ]
    yield from table(rows, terminal_columns())
    for warning in findings["warnings"]:
        yield f"warning: {warning}"
