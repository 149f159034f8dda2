"""The MindSpore face, `mindspore.communication._comm_helper`: what programs use of it."""

from __future__ import annotations

from unisono.core.arguments import missing_name as _missing_name
from unisono.core.groups import is_initialized as _is_initialized
from unisono.mindspore.communication.management import (
    HCCL_WORLD_COMM_GROUP,
    MCCL_WORLD_COMM_GROUP,
    NCCL_WORLD_COMM_GROUP,
    GlobalComm,
)
from unisono.mindspore.communication.management import create_group as _create_group_helper
from unisono.mindspore.communication.management import destroy_group as _destroy_group_helper
from unisono.mindspore.communication.management import get_comm_name as _get_comm_name_helper
from unisono.mindspore.communication.management import (
    get_group_rank_from_world_rank as _get_group_rank_from_world_rank_helper,
)
from unisono.mindspore.communication.management import get_group_size as _get_size_helper
from unisono.mindspore.communication.management import get_local_rank as _get_local_rank_helper
from unisono.mindspore.communication.management import get_local_rank_size as _get_local_size_helper
from unisono.mindspore.communication.management import get_process_group_ranks as _get_group_ranks
from unisono.mindspore.communication.management import get_rank as _get_rank_helper
from unisono.mindspore.communication.management import (
    get_world_rank_from_group_rank as _get_world_rank_from_group_rank_helper,
)

__all__ = [
    "GlobalComm",
    "HCCL_WORLD_COMM_GROUP",
    "MCCL_WORLD_COMM_GROUP",
    "NCCL_WORLD_COMM_GROUP",
    "_create_group_helper",
    "_destroy_group_helper",
    "_get_backend",
    "_get_comm_name_helper",
    "_get_group_rank_from_world_rank_helper",
    "_get_group_ranks",
    "_get_local_rank_helper",
    "_get_local_size_helper",
    "_get_rank_helper",
    "_get_size_helper",
    "_get_world_rank_from_group_rank_helper",
    "_is_available",
    "_is_initialized",
]


def _is_available() -> bool:
    """Tell whether there is communication: always."""
    return True


def _get_backend() -> str:
    """Return the name of the backend that `init` was given, or that fits."""
    return GlobalComm.BACKEND


__getattr__ = _missing_name("mindspore.communication._comm_helper", __all__)
