"""The backend "unisono" of real torch: `torch.distributed.init_process_group("unisono")`.

Where unisono is installed, torch finds `register` by its entry point `torch.backends` and calls it
while it is imported; `import unisono.torch.backend` does the same. Unmodified code (DDP, FSDP,
DTensor, functional collectives) then runs on unisono's engines.
"""

from __future__ import annotations

from typing import Any

__all__ = ["register"]


def register() -> None:
    """Make the name "unisono" known to torch.distributed; doing so twice is allowed."""
    # Imported here, because importing torch may call this function.
    import torch.distributed as dist

    if not dist.is_available() or "unisono" in dist.Backend.backend_list:
        return
    devices = ["cpu"]
    if dist.is_nccl_available():
        devices.append("cuda")  # served by nccl, on the same group
    dist.Backend.register_backend("unisono", _create, extended_api=True, devices=devices)
    _register_dist2()


def _register_dist2() -> None:
    """Make the name known to `torch.distributed._dist2` too, which is experimental in torch."""
    try:
        from torch.distributed import _dist2
    except ImportError:  # before 2.9, or gone again
        return
    _dist2.register_backend("unisono", _create_alone)


def _create(options: Any, backend_options: Any) -> Any:
    # Every `import torch` imports this module, so what only a job needs is imported now.
    from unisono.torch.backend.startup import create

    return create(options, backend_options)


def _create_alone(*given: Any, **named: Any) -> Any:
    from unisono.torch.backend.startup import create_alone

    return create_alone(*given, **named)


register()
