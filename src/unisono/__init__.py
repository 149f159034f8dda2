"""unisono: collectives in PyTorch's dialect or MindSpore's, on the same engines."""

from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from unisono.errors import (
    ArgumentError,
    ArgumentTypeError,
    CommTimeout,
    LaunchError,
    MismatchError,
    NotReady,
    OutOfSharedMemory,
    PeerLost,
    RankFailed,
    UnisonoError,
    Unsupported,
)
from unisono.launch.patch import patch
from unisono.launch.report import report_at_exit as _report_at_exit
from unisono.launch.spawn import spawn

if _TYPE_CHECKING:
    from unisono.arrays import empty, shared_arrays
    from unisono.core.encoding import allow_pickle

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "CommTimeout",
    "LaunchError",
    "MismatchError",
    "NotReady",
    "OutOfSharedMemory",
    "PeerLost",
    "RankFailed",
    "UnisonoError",
    "Unsupported",
    "__version__",
    "allow_pickle",
    "empty",
    "patch",
    "shared_arrays",
    "spawn",
]

__version__ = _version("unisono")
_report_at_exit()


def __getattr__(name: str) -> _Any:
    """Import what needs NumPy when it is first used."""
    if name not in ("allow_pickle", "empty", "shared_arrays"):
        raise AttributeError(f"module 'unisono' has no attribute {name!r}")
    from unisono import arrays
    from unisono.core import encoding

    globals().update(
        allow_pickle=encoding.allow_pickle, empty=arrays.empty, shared_arrays=arrays.shared_arrays
    )
    return globals()[name]
