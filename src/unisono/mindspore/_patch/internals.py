"""MindSpore's own training code over unisono's world, while its public names stay as they are.

A program that joins a world through unisono and trains with MindSpore's `DistributedGradReducer`
or `Model` needs this: MindSpore's own primitives crash where MindSpore has no world. Other code may
go on with MindSpore's public names, and with a world of MindSpore's beside ours.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from unisono.core.patching.imports import after_import
from unisono.core.patching.names import swap
from unisono.mindspore._patch.cache import let_cache_make_ours
from unisono.mindspore._patch.graphs import prepare_graphs
from unisono.mindspore._patch.modes import refuse_other_modes
from unisono.mindspore._patch.table import found, replacements

__all__ = ["OPERATORS_BY_MODULE", "RANKS_BY_MODULE", "take_over"]

#: What MindSpore offers to programs; all its other modules are its own code.
_PUBLIC = ("mindspore.communication", "mindspore.ops", "mindspore.mint.distributed")
#: Its own code that `import mindspore` does not load.
_LATE = ("mindspore.parallel.auto_parallel", "mindspore.parallel.distributed")
#: Its own code that finds primitives as `ops.AllReduce` or `P.AllReduce`.
OPERATORS_BY_MODULE = (
    "mindspore.boost.adasum",
    "mindspore.boost.boost_cell_wrapper",
    "mindspore.boost.dim_reduce",
    "mindspore.nn.optim.adasum",
    "mindspore.nn.optim.optimizer",
    "mindspore.nn.optim.tft_wrapper",
    "mindspore.nn.wrap.cell_wrapper",
    "mindspore.nn.wrap.loss_scale",
    "mindspore.parallel._cell_wrapper",
    "mindspore.train.callback._early_stop",
    "mindspore.train.callback._flops_collector",
    "mindspore.train.callback._reduce_lr_on_plateau",
    "mindspore.train.callback._train_fault_tolerance",
    "mindspore.utils.utils",
)
#: Its own code that asks `ms.mint.distributed` for its rank.
RANKS_BY_MODULE = ("mindspore.dataset.dataloader.distributed", "mindspore.dataset.engine.datasets")

_lock = threading.Lock()
_is_arranged = False
_has_taken_over = False


def take_over() -> None:
    """Make MindSpore's own code use unisono, now or when MindSpore is imported."""
    global _is_arranged
    with _lock:  # ranks may be threads
        if not _is_arranged and _is_installed():
            _is_arranged = True
            after_import("mindspore", _take_over)
    if _has_taken_over:
        refuse_other_modes()


def _is_installed() -> bool:
    return "mindspore" in sys.modules or importlib.util.find_spec("mindspore") is not None


def _take_over() -> None:
    global _has_taken_over
    prepare_graphs()
    let_cache_make_ours()
    manager = importlib.import_module("mindspore._c_expression").CollectiveManager
    if manager.get_instance().initialized():
        return  # MindSpore has a world, which its code belongs to
    list(found(_LATE))
    table = replacements()
    swap(_own_code(), table)
    operators = importlib.import_module("mindspore.ops")
    primitives = importlib.import_module("mindspore.ops.operations")
    swap(
        found(OPERATORS_BY_MODULE),
        _by_identity({thing: _copy(thing, table) for thing in (operators, primitives)}),
    )
    package = importlib.import_module("mindspore")
    mint = _copy(package.mint, table)
    mint.distributed = importlib.import_module("unisono.mindspore.mint.distributed")
    own_package = _copy(package, table)
    own_package.mint = mint
    swap(found(RANKS_BY_MODULE), _by_identity({package: own_package}))
    _has_taken_over = True
    refuse_other_modes()


def _own_code() -> Iterator[ModuleType]:
    for path, module in list(sys.modules.items()):
        is_public = any(path == public or path.startswith(f"{public}.") for public in _PUBLIC)
        if path.startswith("mindspore.") and not is_public:
            yield module


def _copy(module: ModuleType, table: dict[int, tuple[Any, Any]]) -> Any:
    """A module with the same name and contents, in which communication is ours.

    MindSpore's compiler reads what it finds there, so it is no object of another kind.
    """
    copied = ModuleType(module.__name__, module.__doc__)
    vars(copied).update(vars(module))
    swap([copied], table)
    return copied


def _by_identity(pairs: dict[ModuleType, Any]) -> dict[int, tuple[Any, Any]]:
    return {id(real): (real, ours) for real, ours in pairs.items()}
