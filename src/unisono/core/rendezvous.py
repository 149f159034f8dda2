"""Who am I, and how many are we: rank and size from the environment of any launcher."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from unisono.errors import ArgumentError, LaunchError

__all__ = ["DEFAULT_TIMEOUT", "Launch", "find", "timeout"]

#: Seconds that a call may wait for others, unless the caller or UNISONO_TIMEOUT says otherwise.
DEFAULT_TIMEOUT = 1800.0


@dataclass(frozen=True)
class Launch:
    """One rank's place in a job, as its launcher described it.

    `job` names the job, the same on all its ranks; `secret` is what only they know.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    job: str
    source: str
    secret: bytes = field(default=b"", repr=False)

    @property
    def one_host(self) -> bool:
        """Whether all ranks run on this host."""
        return self.local_size == self.size


def find(environ: Mapping[str, str] = os.environ) -> Launch:
    """Read the variables of unisono, torchrun, msrun, Open MPI, PMI/PMIx or Slurm, in this order."""
    raise NotImplementedError


def timeout(seconds: float | None = None, environ: Mapping[str, str] = os.environ) -> float:
    """The deadline for waits: the argument, else UNISONO_TIMEOUT, else 30 minutes."""
    raise NotImplementedError
