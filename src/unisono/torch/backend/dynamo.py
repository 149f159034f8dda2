"""Keeps torch.compile away from our methods.

Compiled code calls DDP, DDP calls C++, and C++ calls the methods here. The compiler looks at every
Python function on the way, and would try to compile ours.
"""

from __future__ import annotations

from types import FunctionType

__all__ = ["skip"]


def skip(kind: type) -> type:
    """Tell the compiler to run the methods of a class, and all that they call, uncompiled.

    `torch.compiler.disable` does the same, but costs each call a microsecond and the import a
    second.
    """
    try:
        from torch._C._dynamo.eval_frame import (
            _FrameAction,
            _FrameExecStrategy,
            set_code_exec_strategy,
        )
    except ImportError:  # an older torch; only a compiled DDP would need this
        return kind
    strategy = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
    for method in vars(kind).values():
        while method is not None:
            if isinstance(method, FunctionType):
                set_code_exec_strategy(method.__code__, strategy)
            method = getattr(method, "__wrapped__", None)  # of a native method, for example
    return kind
