"""The backend "unisono" of real torch: `torch.distributed.init_process_group("unisono")`.

Where unisono is installed, torch finds `register` by its entry point `torch.backends` and calls it
while it is imported; `import unisono.torch.backend` does the same. Unmodified code (DDP, FSDP,
DTensor, functional collectives) then runs on unisono's engines.

With UNISONO_TORCH_DEFAULT=1, or after `use_by_default()`, it also serves CPU tensors where a
program names no backend: `init_process_group()`, `init_device_mesh("cpu", ...)`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["register", "use_by_default"]


def register() -> None:
    """Make the name "unisono" known to torch.distributed; doing so twice is allowed."""
    # Imported here, because importing torch may call this function.
    import torch
    import torch.distributed as dist

    if not dist.is_available() or "unisono" in dist.Backend.backend_list:
        return
    devices = ["cpu"]
    if torch.version.cuda is not None:
        devices.append("cuda")  # served by nccl or by engine `cuda`, on the same group
    dist.Backend.register_backend("unisono", _create, extended_api=True, devices=devices)
    _register_dist2()
    if os.environ.get("UNISONO_TORCH_DEFAULT", "0") not in ("", "0"):
        use_by_default()


def use_by_default() -> None:
    """Make "unisono" the backend of CPU tensors where a program names none; gloo is torch's own."""
    import torch.distributed as dist

    dist.Backend.default_device_backend_map["cpu"] = "unisono"


def _register_dist2() -> None:
    """Make the name known to `torch.distributed._dist2` too, which is experimental in torch."""
    try:
        from torch.distributed import _dist2
    except ImportError:  # before 2.9, or gone again
        return
    _dist2.register_backend("unisono", _create_alone)


def _create(options: Any, backend_options: Any) -> Any:
    # Every `import torch` imports this module, so what only a job needs is imported now.
    from unisono.torch.backend.startup import check_devices, create

    # The function of torch that calls this knows which backend each device is to have, and does not
    # pass it on.
    check_devices(sys._getframe(1).f_locals.get("backend_config"))
    return create(options, backend_options)


def _create_alone(*given: Any, **named: Any) -> Any:
    from unisono.torch.backend.startup import create_alone

    return create_alone(*given, **named)


register()
