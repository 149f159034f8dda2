"""Several hosts on one machine: namespaces of the kernel, joined by a bridge.

Each host has a network, process numbers, a name, an /etc/hosts and a /dev/shm of its own, and one
link, `eth0`. There is also a login node, from which mpiexec starts its ranks. All of it depends on
one pipe: when that closes, however the test run ended, the kernel ends every process of every host
and removes the links. Nothing has a name outside, so nothing is left and nothing collides.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.paths import with_tests
from tests.helpers.programs import Program

__all__ = ["Hosts", "Traffic", "own_memory", "why_not"]

_SPACES = ("--net", "--uts", "--ipc", "--mount")
_LOGIN = "login"


# ---- whether there can be hosts ------------------------------------------------------------------


def why_not(*, rate: bool = False, delay: bool = False, mpiexec: bool = False) -> str | None:
    """Say why there can be no hosts here, or none with such links; None if there can be."""
    tools = ["unshare", "nsenter", "mount", "ip", *(["tc"] if rate else [])]
    missing = [tool for tool in tools if _tool(tool) is None]
    if sys.platform != "linux" or missing:
        return f"hosts need Linux, util-linux and iproute2; missing here: {', '.join(missing)}"
    reason = _rights()[1]
    if reason is None and delay and not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        reason = "links with a delay need /dev/net/tun, which is missing or may not be opened"
    if reason is None and mpiexec and not _is_hydra():
        reason = "mpiexec is missing, or not MPICH's, which takes another remote shell than ssh"
    return reason


@functools.cache
def _is_hydra() -> bool:
    try:
        done = subprocess.run([_mpiexec(), "--version"], capture_output=True, text=True)
    except OSError:
        return False
    return "HYDRA" in done.stdout


def _mpiexec() -> str:
    """The one that came with this Python, if one did."""
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else "mpiexec"


@functools.cache
def _rights() -> tuple[tuple[str, ...], str | None]:
    """Options that unshare needs here, and why it fails even with them."""
    trial = (
        "mount -t tmpfs tmpfs /dev/shm && ip link add zero type bridge"
        " && ip link add one type veth peer name two && hostname trial"
        # In a user namespace this interpreter may be out of reach, as one below /root is.
        f" && {shlex.quote(sys.executable)} -S -c pass"
    )
    failures = []
    # A user who is not root may be root in a user namespace, where the system allows that.
    for extra in ((), ("--user", "--map-root-user")):
        done = subprocess.run(
            [*_unshare(extra), "sh", "-c", trial], capture_output=True, text=True, env=_environ()
        )
        if done.returncode == 0:
            return extra, None
        failures.append(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "?")
    who = "root" if os.geteuid() == 0 else "this user, who is not root,"
    return (), f"{who} may not make namespaces here: {failures[0]}; with --user: {failures[1]}"


def own_memory(mount: str = "-t tmpfs tmpfs") -> list[str]:
    """Run what follows with a /dev/shm of its own, where that is allowed; it goes with the job.

    MPI's ranks leave files there when they are killed.
    """
    if why_not() is not None:
        return []
    command = f'mount {mount} /dev/shm && exec "$@"'
    return ["unshare", *_rights()[0], "--mount", "sh", "-c", command, "sh"]


def _tool(name: str) -> str | None:
    return shutil.which(name, path=_environ()["PATH"])


def _environ() -> dict[str, str]:
    """Our variables, with the folders in which systems keep such tools."""
    return {**os.environ, "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"}


def _unshare(extra: Sequence[str] = ()) -> list[str]:
    return ["unshare", *extra, *_SPACES, "--pid", "--fork", "--mount-proc"]


def _enter(pid: int, extra: Sequence[str] = ()) -> list[str]:
    """Run what follows in the namespaces that the `unshare` of this number has made."""
    user = ["--user", "--preserve-credentials"] if extra else []
    numbers = f"--pid=/proc/{pid}/ns/pid_for_children"  # unshare itself stays where it was
    return ["nsenter", "-t", str(pid), *user, *_SPACES, numbers]


# ---- hosts ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Traffic:
    """Bytes that left a host and that came to it, headers and all."""

    sent: int
    received: int

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(self.sent - other.sent, self.received - other.received)


class Hosts:
    """`count` hosts, called node-0, node-1, ... or by `names`, until the end of the `with` block.

    `rate` (as tc writes it, "200mbit") limits each direction of each link; `delay` is how many
    seconds a packet takes through one link, so that an answer from another host takes four times
    as long at least. With `loopback` each host knows its own name by 127.0.1.1, as Debian sets it.
    """

    def __init__(
        self,
        count: int,
        *,
        rate: str | None = None,
        delay: float | None = None,
        loopback: bool = False,
        names: Sequence[str] = (),
    ) -> None:
        self.names = tuple(names or (f"node-{index}" for index in range(count)))
        self.addresses = tuple(f"10.201.0.{index + 1}" for index in range(count))
        self._rate = rate
        self._delay = delay
        self._loopback = loopback
        self._programs: list[Program] = []
        self._pids: list[int] = []  # of each host's unshare, as the login node counts

    def __enter__(self) -> Hosts:
        extra, reason = _rights()
        assert reason is None, reason
        self._pipe = subprocess.Popen(
            [*_unshare(extra), "sh", "-c", self._login_script()],
            env=_environ(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._enter_login = _enter(self._pipe.pid, extra)
        try:
            assert self._pipe.stdout is not None
            assert self._pipe.stdout.readline() == b"ready\n", "the login node does not come up"
            started = [self._start_host(index) for index in range(len(self.names))]
            self._pids = [int(each.line()) for each in started]
            assert [each.line() for each in started] == ["ready"] * len(started)
            if self._delay is not None:
                self._start_emulator()
            self._at_login("sh", "-ec", "\n".join(self._add_links()))
            self._at_login("sh", "-ec", "\n".join(self._set_up_links()))
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End everything that runs on the hosts, and the hosts."""
        assert self._pipe.stdin is not None and self._pipe.stdout is not None
        self._pipe.stdin.close()
        self._pipe.stdout.close()
        self._pipe.wait()
        for program in self._programs:
            program.close()

    # ---- running ----

    def popen(
        self, host: int | None, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Program:
        """Start a program on a host, or on the login node (None), with `env` added to our own."""
        variables = {**_environ(), "PYTHONPATH": with_tests(), **(env or {})}
        inner = [] if host is None else _enter(self._pids[host])
        # A program that enters a host loses the working directory.
        command = [*self._enter_login, *inner, "env", "-C", str(Path.cwd()), *argv]
        program = Program(command, variables)
        self._programs.append(program)
        return program

    def run(
        self,
        host: int | None,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> str:
        """Run a program, which must succeed, and return what it wrote."""
        program = self.popen(host, argv, env)
        code = program.wait(timeout)
        assert code == 0, f"{list(argv)} ended with {code}:\n{program.out}\n{program.err}"
        return program.out

    def torchrun(
        self,
        ranks: int,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        static: bool = False,
    ) -> list[Program]:
        """Start a job with so many ranks on each host: one torchrun on each, which find each other.

        They rendezvous in a store of torchrun's own, or at a `static` address. `argv` begins with
        a Python script or, after "--no-python", a program.
        """
        rendezvous = ["--master-addr", self.names[0], "--master-port", "29400"]
        if not static:
            rendezvous = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{self.names[0]}:29400"]
            rendezvous += ["--rdzv-id", "tests"]
        count = str(len(self.names))
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", count]
        command += ["--nproc-per-node", str(ranks), *rendezvous]
        variables = {"OMP_NUM_THREADS": "1", **(env or {})}
        programs = []
        for index in range(len(self.names)):
            number = ["--node-rank", str(index)] if static else []
            programs.append(self.popen(index, [*command, *number, *argv], variables))
        return programs

    def ranks(
        self,
        hosts_of_ranks: Sequence[int],
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
    ) -> list[Program]:
        """Start a job without a launcher: rank i is a program on host `hosts_of_ranks[i]`.

        They get the variables that torchrun would set.
        """
        programs = []
        for rank, host in enumerate(hosts_of_ranks):
            variables = {
                "RANK": str(rank),
                "WORLD_SIZE": str(len(hosts_of_ranks)),
                "LOCAL_RANK": str(list(hosts_of_ranks[:rank]).count(host)),
                "LOCAL_WORLD_SIZE": str(list(hosts_of_ranks).count(host)),
                "MASTER_ADDR": self.names[hosts_of_ranks[0]],
                "MASTER_PORT": "29500",
                "OMP_NUM_THREADS": "1",
                **(env or {}),
            }
            programs.append(self.popen(host, argv, variables))
        return programs

    def mpiexec(
        self, ranks: int, argv: Sequence[str], env: Mapping[str, str] | None = None
    ) -> Program:
        """Start a job with so many ranks on each host by one mpiexec (MPICH's) at the login."""
        command = [_mpiexec(), "-launcher", "ssh"]
        command += ["-launcher-exec", "/dev/shm/enter", "-hosts", ",".join(self.names)]
        command += ["-ppn", str(ranks), "-n", str(ranks * len(self.names))]
        return self.popen(None, [*command, *argv], {"OMP_NUM_THREADS": "1", **(env or {})})

    # ---- links ----

    def traffic(self, host: int) -> Traffic:
        """What went through the link of a host so far."""
        # Read at the other end of it, where what the host sent is received.
        for line in Path(f"/proc/{self._pipe.pid}/net/dev").read_text().splitlines():
            name, _, numbers = line.partition(":")
            if name.strip() == f"port{host}":
                counted = [int(word) for word in numbers.split()]
                return Traffic(counted[0], counted[8])
        raise AssertionError(f"host {host} has no link")

    def cut(self, host: int) -> None:
        """Take the link of a host down."""
        self._at_login("ip", "link", "set", f"port{host}", "down")

    def reconnect(self, host: int) -> None:
        """Bring the link of a host up again."""
        self._at_login("ip", "link", "set", f"port{host}", "up")

    # ---- setting up ----

    def _at_login(self, *argv: str) -> None:
        self.run(None, argv)

    def _hosts_file(self, own: int | None) -> str:
        lines = ["127.0.0.1 localhost", f"10.201.0.254 {_LOGIN}"]
        for index, name in enumerate(self.names):
            own_line = self._loopback and index == own
            lines.append(f"{'127.0.1.1' if own_line else self.addresses[index]} {name}")
        return "\n".join(lines)

    def _script(self, name: str, own: int | None) -> list[str]:
        """What every host does first."""
        return [
            "set -e",
            f"hostname {name}",
            "mount -t sysfs sysfs /sys || :",
            # A file of its own over /etc/hosts, out of a file system that a second one then covers.
            "mount -t tmpfs tmpfs /dev/shm",
            f"printf '%s\\n' '{self._hosts_file(own)}' > /dev/shm/hosts",
            "mount --bind /dev/shm/hosts /etc/hosts",
            "mount -t tmpfs tmpfs /dev/shm",
            "ip link set lo up",
        ]

    def _login_script(self) -> str:
        enter = " ".join(_enter(0)).replace("-t 0", '-t "$pid"').replace("/0/", '/"$pid"/')
        remote_shell = [
            "#!/bin/sh",
            "# Called as ssh would be: options, a host, and a command for its shell.",
            'while [ "${1#-}" != "$1" ]; do shift; done',
            'pid=$(cat "/dev/shm/$1")',
            "shift",
            f'exec {enter} env -C "$PWD" sh -c "$*"',
        ]
        lines = self._script(_LOGIN, None)
        lines += [f"cat > /dev/shm/enter <<'END'\n{chr(10).join(remote_shell)}\nEND"]
        lines += ["chmod 755 /dev/shm/enter", "ip link add bridge type bridge"]
        lines += ["ip addr add 10.201.0.254/24 dev bridge", "ip link set bridge up"]
        # The pipe is standard input; at its end this first process ends, and with it all others.
        return "\n".join([*lines, "echo ready", "exec cat > /dev/null"])

    def _start_host(self, index: int) -> Program:
        lines = [*self._script(self.names[index], index), "echo ready", "exec sleep infinity"]
        start = f'echo $$; echo $$ > /dev/shm/{self.names[index]}; exec "$@"'
        argv = ["sh", "-c", start, "sh", *_unshare(), "sh", "-c", "\n".join(lines)]
        return self.popen(None, argv)

    def _add_links(self) -> list[str]:
        """For the login node: both ends of each link, one on the bridge and one in the host."""
        lines = []
        for index, pid in enumerate(self._pids):
            if self._delay is None:
                lines.append(f"ip link add port{index} type veth peer name end{index}")
            lines += [
                f"ip link set end{index} netns {pid}",
                f"ip link set port{index} master bridge up",
                *self._shape(f"port{index}"),
            ]
        return lines

    def _set_up_links(self) -> list[str]:
        """For the login node: what each host does with its end of the link."""
        lines = []
        for index, pid in enumerate(self._pids):
            own = [
                f"ip link set end{index} name eth0",
                f"ip addr add {self.addresses[index]}/24 dev eth0",
                "ip link set eth0 up",
                *self._shape("eth0"),
            ]
            lines.append(f"{' '.join(_enter(pid))} sh -ec '{'; '.join(own)}'")
        return lines

    def _shape(self, device: str) -> list[str]:
        if self._rate is None:
            return []
        return [f"tc qdisc add dev {device} root tbf rate {self._rate} burst 128kb latency 100ms"]

    def _start_emulator(self) -> None:
        argv = [
            sys.executable,
            "-I",
            str(Path(__file__).with_name("link_emulator.py")),
            str(self._delay),
            str(len(self.names)),
        ]
        assert self.popen(None, argv).line() == "ready"
