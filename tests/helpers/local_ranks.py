"""What a rank is told about who is on its host; as a program: `local_ranks.py ENGINE` on each rank.

The program prints one line of JSON: the host's name and what `ask` returns.
"""

from __future__ import annotations

import json
import os
import socket
import sys

import numpy as np

from unisono.core import groups
from unisono.mindspore import communication
from unisono.mindspore.communication import comm_func

__all__ = ["ask"]


def ask() -> list[int]:
    """Ask about the world of four, a group of all in reverse order, and a group of three."""
    world = groups.world()
    communication.create_group("reversed", [3, 2, 1, 0])
    world.split([3, 0, 2], "three")  # rank 1 calls this too, and is not in the group
    found = [communication.get_rank()]
    for name in (None, "reversed"):
        found.append(communication.get_local_rank(name))
        found.append(communication.get_local_rank_size(name))
    found.append(communication.get_local_rank_size("three"))
    found.append(-1 if world.rank == 1 else communication.get_local_rank("three"))
    comm_func.all_reduce(np.ones(1))  # no rank leaves while another still asks
    return found


def main(engine: str) -> None:
    """Join a world on this engine, ask, and print the answers."""
    os.environ["UNISONO_ENGINE"] = engine
    communication.init()
    sys.stdout.write(json.dumps([socket.gethostname(), ask()]) + "\n")
    sys.stdout.flush()
    communication.release()


if __name__ == "__main__":
    main(sys.argv[1])
