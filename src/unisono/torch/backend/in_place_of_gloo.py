"""Groups for a program that asks torch for gloo, or for no backend, where torch is patched.

They are groups as those of backend "unisono". What torch tells about them is what it would tell of
gloo's, because libraries decide by it: some leave DDP out on a CPU unless the backend is "gloo".
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from datetime import timedelta
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from unisono.torch.backend import register
from unisono.torch.backend.nccl import GroupWithNccl, is_usable
from unisono.torch.backend.process_group import UnisonoGroup

__all__ = ["replacements"]

#: torch's own: every group of `init_process_group`, `new_group` and meshes is made by it.
_make_group = c10d._new_process_group_helper
_make_group_parameters = inspect.signature(_make_group)
_set_timeout = c10d._set_pg_timeout
#: Backends whose part of a group we serve.
_REPLACED = {"gloo", "unisono"}


def replacements() -> dict[int, tuple[Any, Any]]:
    """What torch has, by its identity, and what replaces it."""
    register()  # torch does it, but not with TORCH_DEVICE_BACKEND_AUTOLOAD=0
    pairs = ((_make_group, _make_group_of_ours), (_set_timeout, _set_timeout_of_ours))
    return {id(theirs): (theirs, ours) for theirs, ours in pairs}


@wraps(_make_group)
def _make_group_of_ours(*arguments: Any, **named: Any) -> Any:
    call = _make_group_parameters.bind(*arguments, **named)
    asked = c10d.Backend(call.arguments["backend"])
    if not _is_replaced(asked):
        return _make_group(*arguments, **named)
    before = set(c10d._world.pg_map)
    call.arguments["backend"] = "unisono"
    group, store = _make_group(*call.args, **call.kwargs)
    # Ranks that are not members get no group, and with a tag torch may return an earlier one.
    if isinstance(group, UnisonoGroup) and group not in before:
        config = c10d.BackendConfig(asked)
        c10d._world.pg_map[group] = (asked, store)
        c10d._world.pg_backend_config[group] = str(config)
        is_with_nccl = "nccl" in config.get_device_backend_map().values()
        group.backend_name = "nccl" if is_with_nccl else "gloo"
    return group, store


@wraps(_set_timeout)
def _set_timeout_of_ours(timeout: timedelta, group: Any = None) -> None:
    chosen = dist.group.WORLD if group is None else group
    is_ours = isinstance(chosen, UnisonoGroup)
    if is_ours:
        chosen.set_timeout(timeout)
    if not is_ours or isinstance(chosen, GroupWithNccl):
        _set_timeout(timeout, group)


def _is_replaced(asked: str) -> bool:
    """Whether a backend, as the program has named it, means gloo for CPU tensors."""
    if asked not in ("gloo", "undefined") and ":" not in asked:
        return False
    devices: Mapping[str, str] = c10d.BackendConfig(asked).get_device_backend_map()
    others = {
        device: name
        for device, name in devices.items()
        if name not in _REPLACED and not (device == "cuda" and name == "nccl" and is_usable())
    }
    return devices.get("cpu") == "gloo" and not others
