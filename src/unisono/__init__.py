"""unisono: collectives in PyTorch's dialect or MindSpore's, on the same engines."""

from importlib import import_module as _import_module
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
    from unisono.notebook.magics import load_ipython_extension, unload_ipython_extension
    from unisono.notebook.ranks import ranks

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
    "load_ipython_extension",
    "patch",
    "ranks",
    "shared_arrays",
    "spawn",
    "unload_ipython_extension",
]

__version__ = _version("unisono")
_report_at_exit()


_LATE = {
    "allow_pickle": "unisono.core.encoding",
    "empty": "unisono.arrays",
    "load_ipython_extension": "unisono.notebook.magics",
    "ranks": "unisono.notebook.ranks",
    "shared_arrays": "unisono.arrays",
    "unload_ipython_extension": "unisono.notebook.magics",
}


def __getattr__(name: str) -> _Any:
    """Import what few need, or what needs NumPy, when it is first used."""
    if name not in _LATE:
        raise AttributeError(f"module 'unisono' has no attribute {name!r}")
    globals()[name] = getattr(_import_module(_LATE[name]), name)
    return globals()[name]
