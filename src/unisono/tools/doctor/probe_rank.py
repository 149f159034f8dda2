"""A rank of a job of `unisono doctor`: it joins the world of an engine and makes one all_reduce."""

from __future__ import annotations

import sys

__all__ = ["FAILED", "main"]

#: Stands before the error in what a rank prints.
FAILED = "doctor: failed: "
#: Large enough that ranks ask for more memory than they begin with.
_COUNT = 1 << 18


def main(engine: str) -> int:
    """Run the rank; with `threads` both of them."""
    try:
        if engine == "threads":
            import unisono

            unisono.spawn(_reduce, 2)
        else:
            _join(engine)
    except Exception as error:
        text = " ".join(str(error).split())
        print(f"{FAILED}{type(error).__name__}: {text}", flush=True)
        return 1
    return 0


def _join(engine: str) -> None:
    from unisono.core import environment, groups, rendezvous

    if engine.partition(":")[0] == "hybrid":
        # Each rank says that it is a host, so that there is something between hosts.
        host = f"{rendezvous.identity()}-{environment.find().rank} doctor"
        rendezvous.own_host = lambda: host
    groups.init(engine)
    try:
        _reduce()
    finally:
        groups.close()


def _reduce() -> None:
    import numpy as np

    from unisono.core import buffers, dispatch, groups
    from unisono.core.dtypes import ReduceOp

    world = groups.world()
    if world.size != 2:
        raise RuntimeError(f"the world has {world.size} ranks, and should have 2")
    array = np.full(_COUNT, world.rank + 1.0, np.float32)
    view = buffers.view(array)
    dispatch.all_reduce(world, view, view, ReduceOp.SUM, blocking=True)
    if not (array == 3.0).all():
        raise RuntimeError(f"all_reduce of 1 and 2 gave {array[array != 3.0][0]}")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
