"""Run by msrun: the same bad calls of MindSpore and of unisono, each in a world of its own.

Writes one entry for each call into result.json: what was called, what MindSpore raised, what
unisono raised, and whether unisono's error is caught where MindSpore's would be.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore
import mindspore.communication as their_communication
import numpy as np
from mindspore.communication import comm_func as their_comm_func

from unisono.mindspore import communication
from unisono.mindspore.communication import comm_func

X = mindspore.Tensor(np.ones((3, 2), np.float32))
NARROW = mindspore.Tensor(np.ones((3, 1), np.float32))
WORLD = "mccl_world_group"  # the name that every function of MindSpore takes on a CPU

# None of these reaches a kernel: MindSpore has none for comm_func on a CPU.
CALLS: list[Callable[[Any, Any], Any]] = [
    lambda comm, func: func.all_gather_into_tensor(X, "no"),
    lambda comm, func: func.reduce_scatter_tensor(X, 3),
    lambda comm, func: func.reduce(X, "0", group=WORLD),
    lambda comm, func: func.reduce(X, 9, group=WORLD),
    lambda comm, func: func.reduce(X, 0, 3, WORLD),
    lambda comm, func: func.broadcast(X, 9, WORLD),
    lambda comm, func: func.scatter_tensor(X, 9, WORLD),
    lambda comm, func: func.gather_into_tensor(X, 9, WORLD),
    lambda comm, func: func.send(X, "0"),
    lambda comm, func: func.send(X, 0, "no"),
    lambda comm, func: func.recv(X, 0, "no"),
    lambda comm, func: func.isend(X, 0, "no"),
    lambda comm, func: func.irecv(X, 0, "no"),
    lambda comm, func: func.all_to_all_v_c(X, X, [1, 1]),
    lambda comm, func: func.all_to_all_v_c(X, NARROW, [1]),
    lambda comm, func: func.batch_isend_irecv([func.P2POp("irecv", (2,), 0)]),
    lambda comm, func: comm.create_group("g", (0,)),
    lambda comm, func: comm.create_group("g", []),
    lambda comm, func: comm.create_group("g", [0, 0]),
    lambda comm, func: comm.create_group("g", [0], 3),
    lambda comm, func: comm.create_group("h", [1]),
    lambda comm, func: comm.create_group("g", [0]),
    lambda comm, func: comm.create_group("g", [0, 1]),
    lambda comm, func: comm.create_group("g", [0]),
    lambda comm, func: comm.get_rank("no"),
    lambda comm, func: comm.get_local_rank("no"),
    lambda comm, func: comm.get_group_size("no"),
    lambda comm, func: comm.get_local_rank_size("no"),
    lambda comm, func: comm.get_process_group_ranks("no"),
    lambda comm, func: comm.destroy_group("no"),
    lambda comm, func: comm.destroy_group(WORLD),
    lambda comm, func: comm.get_world_rank_from_group_rank(WORLD, "0"),
    lambda comm, func: comm.get_world_rank_from_group_rank(WORLD, -1),
    lambda comm, func: comm.get_world_rank_from_group_rank(WORLD, 5),
    lambda comm, func: comm.get_group_rank_from_world_rank(5, WORLD),
    lambda comm, func: comm.get_group_rank_from_world_rank("5", WORLD),
    lambda comm, func: comm.init("gloo"),
    lambda comm, func: comm.init(3),
    # What both return; get_local_rank_size is left out, because MindSpore returns 0 on a CPU.
    lambda comm, func: comm.init(),
    lambda comm, func: comm.get_rank(),
    lambda comm, func: comm.get_rank("g"),
    lambda comm, func: comm.get_local_rank(),
    lambda comm, func: comm.get_group_size("g"),
    lambda comm, func: comm.get_process_group_ranks("g"),
    lambda comm, func: comm.get_world_rank_from_group_rank("g", 0),
    lambda comm, func: comm.get_group_rank_from_world_rank(0, "g"),
    lambda comm, func: comm.get_comm_name(WORLD),
    lambda comm, func: comm.destroy_group("g"),
    lambda comm, func: [
        comm.GlobalComm.BACKEND,
        comm.GlobalComm.WORLD_COMM_GROUP,
        comm.GlobalComm.INITED,
    ],
]


def outcome(call: Callable[[Any, Any], Any], *modules: Any) -> tuple[Any, Exception | None]:
    try:
        return call(*modules), None
    except Exception as error:
        return None, error


def main() -> None:
    their_communication.init()  # msrun's scheduler stays in here until the worker has ended
    communication.init()
    entries = []
    for number, call in enumerate(CALLS):
        their_answer, their_error = outcome(call, their_communication, their_comm_func)
        our_answer, our_error = outcome(call, communication, comm_func)
        if their_error is None:
            agree = our_error is None and their_answer == our_answer
        else:
            agree = isinstance(our_error, type(their_error))
        theirs, ours = their_error or their_answer, our_error or our_answer
        entries.append(
            {
                "call": number,
                "theirs": repr(theirs)[:200],
                "ours": repr(ours)[:200],
                "raised": their_error is not None,
                "agree": agree,
            }
        )
    Path("result.json").write_text(json.dumps(entries))


if __name__ == "__main__":
    main()
