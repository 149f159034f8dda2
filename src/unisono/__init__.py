"""unisono: collectives in PyTorch's dialect or MindSpore's, on the same engines."""

from importlib.metadata import version as _version

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
    "patch",
    "spawn",
]

__version__ = _version("unisono")
_report_at_exit()
