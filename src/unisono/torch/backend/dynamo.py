"""What torch.compile has to know of us: nothing.

Compiled code calls DDP, DDP calls C++, and C++ calls the methods here; the compiler looks at every
Python function on this way and would try to compile ours.
"""

from __future__ import annotations

from types import FunctionType

__all__ = ["leave_alone"]


def leave_alone(kind: type) -> type:
    """Tell the compiler to run the methods of a class, and all that they call, as they are.

    `torch.compiler.disable` says the same, but would cost each call a microsecond and the import
    a second.
    """
    try:
        from torch._C._dynamo.eval_frame import (
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )
    except ImportError:  # an older torch, where only a compiled DDP goes without
        return kind
    skip = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    for method in vars(kind).values():
        if isinstance(method, FunctionType):
            set_code_exec_strategy(method.__code__, skip)
    return kind
