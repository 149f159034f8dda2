"""`unisono doctor --network`: how the hosts of a job reach each other, measured and judged.

Every rank of a job runs it. Names are looked at before anybody waits for anybody, because a host
that calls itself 127.0.1.1 is why ranks of several hosts wait for each other in vain.
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
from unisono.tools.table import pad, width

__all__ = ["Host", "Pair", "main", "suspicious_names"]

_PATIENCE = 60.0  # seconds for ranks to meet, unless UNISONO_TIMEOUT says otherwise
_SMALL = 8
_LARGE = 8 << 20
_SIOCGIFADDR = 0x8915  # Linux: the address of an interface
_WARMING = 3  # rounds of the small message that do not count
#: For each size: the most rounds, and the seconds after which no further one should begin.
_ROUNDS = {_SMALL: (300, 0.5), _LARGE: (8, 1.5)}


@dataclass(frozen=True)
class Host:
    """A host of the job: its name, the addresses that it has for that name, and its ranks."""

    name: str
    addresses: tuple[str, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """What was measured between two hosts, by one rank of each: seconds, and bytes per second."""

    hosts: tuple[str, str]
    ranks: tuple[int, int]
    latency: float
    bandwidth: float


def main(arguments: argparse.Namespace) -> int:
    """Measure, and print on rank 0; return 1 if a name is suspicious or ranks cannot meet."""
    launch = environment.find()
    if launch.size == 1:
        raise LaunchError(
            "--network compares the hosts of a job, and this process is alone; start it on several "
            "hosts, for example: torchrun --nnodes 2 ... --no-python unisono doctor --network"
        )
    warnings = suspicious_names(launch)
    _warn(warnings if launch.local_rank == 0 else [])
    try:
        world = groups.init(timeout=_patience())
        findings = _examine(world, warnings)
        groups.close()
    except RuntimeError as error:  # ours, or one of torch's when its store fails
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        if launch.rank == 0 and arguments.json:
            print(json.dumps({"warnings": warnings, "error": reason}, indent=2))
        place = f"rank {launch.rank} on {socket.gethostname()}"
        hint = "; see the warnings above" if warnings else ""
        print(f"unisono: {place}: {reason}{hint}", file=sys.stderr)
        return 1
    if launch.rank == 0:
        print(json.dumps(findings, indent=2) if arguments.json else "\n".join(_lines(findings)))
    return 1 if findings["warnings"] and launch.rank == 0 else 0


def _patience() -> float:
    return environment.timeout(None if os.environ.get("UNISONO_TIMEOUT") else _PATIENCE)


# ---- names ---------------------------------------------------------------------------------------


def suspicious_names(launch: Launch) -> list[str]:
    """What is wrong with the names that this host knows, as far as one rank alone can tell."""
    if launch.one_host:
        return []  # there a loopback address is as good as any
    name = socket.gethostname()
    found = []
    addresses = _addresses(name)
    loops = [address for address in addresses if _is_loopback(address)]
    if not addresses:
        found.append(
            f"host {name!r} cannot resolve its own name; other hosts are told no address of it. "
            f"{_cure(name)}"
        )
    elif loops:
        found.append(
            f"host {name!r} resolves its own name to {loops[0]}, a loopback address: other hosts "
            f"that are told this reach themselves, and ranks wait in vain. {_cure(name)}"
        )
    master = os.environ.get("MASTER_ADDR", "")
    # The first host may call the master so, because there it is; for the others it is elsewhere.
    if master and launch.rank != launch.local_rank:
        loops = [address for address in _addresses(master) if _is_loopback(address)]
        if loops:
            found.append(
                f"on host {name!r} MASTER_ADDR is {master!r}, which is {loops[0]} there, a "
                "loopback address, though rank 0 is on another host; set it to rank 0's address "
                "in the network"
            )
    return found


def _cure(name: str) -> str:
    address = _outward()
    own = f"its address in the network, {address}" if address else "its address in the network"
    return (
        f"Give {name!r} {own}, in its /etc/hosts, or set GLOO_SOCKET_IFNAME to the interface that "
        "has it"
    )


def _outward() -> str | None:
    """This host's address in the network: the one from which it would write to the master."""
    master = os.environ.get("MASTER_ADDR", "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        found = []
        with contextlib.suppress(OSError):
            probe.connect((master, 9))  # sends nothing
            found.append(str(probe.getsockname()[0]))
        # Where the master is this very host, by such a name, interfaces have to tell.
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
    """Whether an address means whoever uses it.

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
    """Everything that is known once ranks have met; the same on all of them but for the pairs."""
    name = socket.gethostname()
    told = objects.all_gather(world, (rendezvous.identity(), name, _addresses(name), warnings))
    ranks: dict[str, list[int]] = {}
    for rank, (identity, *_) in enumerate(told):
        ranks.setdefault(identity, []).append(rank)
    every = [Host(told[here[0]][1], told[here[0]][2], tuple(here)) for here in ranks.values()]
    looks = world.rank == ranks[rendezvous.identity()][0]  # one rank of each host does
    seen = _misleading([host.name for host in every]) if looks else []
    _warn(seen)
    said = [line for *_, lines in told for line in lines]
    said += [line for lines in objects.all_gather(world, seen) for line in lines]
    mine = [asdict(pair) for pair in _measure(world, every)]
    pairs = objects.gather(world, mine, 0) or []
    return {
        "engine": world.engine.name if world.engine is not None else None,
        "hosts": [asdict(host) for host in every],
        "pairs": [pair for each in pairs for pair in each],
        "warnings": list(dict.fromkeys(said)),  # all ranks of a host have said the same
        "error": None,
    }


def _misleading(names: Sequence[str]) -> list[str]:
    """What is wrong with the names that this host has for other hosts."""
    own = socket.gethostname()
    found = []
    for name in names:
        loops = [address for address in _addresses(name) if _is_loopback(address)]
        if loops and name != own:
            found.append(
                f"host {own!r} resolves {name!r}, which is another host, to {loops[0]}, a loopback "
                f"address; give {name!r} its address in the network, in the /etc/hosts of {own!r}"
            )
    return found


def _measure(world: Group, every: Sequence[Host]) -> Iterator[Pair]:
    """Play with one rank of each other host, pair after pair, while all others wait."""
    for index, first in enumerate(every):
        for second in every[index + 1 :]:
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
                names = (_label(first, every), _label(second, every))
                yield Pair(names, ranks, latency, _LARGE * 2 / min(long))
    dispatch.barrier(world)


def _ping_pong(world: Group, peer: int, leads: bool, size: int) -> list[float]:
    """Seconds of each round: there and back. The one who leads says how many there are."""
    data = buffers.view(np.zeros(size, np.uint8))
    rounds = np.zeros(1, np.int64)

    steps = [dispatch.send, dispatch.recv] if leads else [dispatch.recv, dispatch.send]

    def one_round() -> float:
        began = time.perf_counter()
        for step in steps:
            step(world, data, peer)
        return time.perf_counter() - began

    for _ in range(_WARMING if size == _SMALL else 1):
        lasted = one_round()
    if leads:
        most, seconds = _ROUNDS[size]
        rounds[0] = max(1, min(most, int(seconds / lasted)))
    steps[0](world, buffers.view(rounds), peer)
    return [one_round() for _ in range(int(rounds[0]))]


def _label(host: Host, every: Sequence[Host]) -> str:
    """A host's name; containers may share one, and then a rank tells them apart."""
    same = [other for other in every if other.name == host.name]
    return host.name if len(same) == 1 else f"{host.name} (rank {host.ranks[0]})"


# ---- for people ----------------------------------------------------------------------------------


def _lines(findings: dict[str, Any]) -> Iterator[str]:
    every = findings["hosts"]
    count = sum(len(host["ranks"]) for host in every)
    yield f"engine {findings['engine']}: {count} ranks on {_number(len(every), 'host')}"
    for host in every:
        ranks = ", ".join(map(str, host["ranks"]))
        known = ", ".join(host["addresses"]) or "an unknown address"
        yield f"  {host['name']} ({known}): ranks {ranks}"
    if len(every) == 1:
        yield f"all {count} ranks are on one host, so there is no network between them to measure"
        return
    rows = [("from", "to", "latency", "bandwidth")]
    rows += [
        (*pair["hosts"], _time(pair["latency"]), _speed(pair["bandwidth"]))
        for pair in findings["pairs"]
    ]
    widths = [max(width(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        yield "  ".join(map(pad, row, widths)).rstrip()
    for warning in findings["warnings"]:
        yield f"warning: {warning}"


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _time(seconds: float) -> str:
    """A short time for people.

    >>> _time(0.00213), _time(0.0000426)
    ('2.13 ms', '42.6 us')
    """
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"


def _speed(speed: float) -> str:
    """Bytes per second for people, and as makers of networks count.

    >>> _speed(112.4e6), _speed(2.5e9)
    ('112 MB/s (0.899 Gbit/s)', '2.5 GB/s (20 Gbit/s)')
    """
    digits = f"{speed / 1e9:.3g} GB/s" if speed >= 1e9 else f"{speed / 1e6:.3g} MB/s"
    return f"{digits} ({speed * 8 / 1e9:.3g} Gbit/s)"
