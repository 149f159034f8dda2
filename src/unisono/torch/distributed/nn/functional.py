"""The collectives with a gradient, as in `torch.distributed.nn.functional`, for torch tensors.

Each returns its result. `backward()` is a collective too: every rank of the group calls it, for a
loss that its result is part of. A gradient is that of the sum of all ranks' losses.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from unisono.core.arguments import check_length, check_list, check_shape, missing_name
from unisono.core.engine import ReduceOp
from unisono.core.groups import Group
from unisono.errors import ArgumentTypeError, NotReady
from unisono.torch.distributed import arguments

if TYPE_CHECKING:
    from types import ModuleType

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "gather",
    "reduce",
    "reduce_scatter",
    "scatter",
]

__getattr__ = missing_name("torch.distributed.nn.functional", __all__)


def broadcast(tensor: Any, src: int, group: Group | None = None) -> Any:
    """Return the tensor of rank `src` on every rank; the others give one of the same shape.

    >>> import torch
    >>> def gradient():
    ...     x = torch.ones(1, requires_grad=True)
    ...     functional.broadcast(x, src=1).sum().backward()
    ...     return x.grad.tolist()
    >>> unisono.spawn(gradient, 3)
    [[0.0], [3.0], [0.0]]
    """
    _check_tensor(tensor, "tensor", "broadcast")
    members = _members(group, "broadcast")
    root = arguments.root(members, src, None, "src")
    return _autograd().broadcast(members, root, tensor)


def gather(tensor: Any, dst: int = 0, group: Group | None = None) -> tuple[Any, ...]:
    """Return every rank's tensor on rank `dst`, and as many tensors of zeros on the others.

    >>> import torch
    >>> def gradient():
    ...     x = torch.ones(1, requires_grad=True)
    ...     parts = functional.gather(x, dst=1)
    ...     (dist.get_rank() * torch.cat(parts)).sum().backward()
    ...     return x.grad.tolist()
    >>> unisono.spawn(gradient, 3)
    [[1.0], [1.0], [1.0]]
    """
    _check_tensor(tensor, "tensor", "gather")
    members = _members(group, "gather")
    root = arguments.root(members, dst, None, "dst")
    parts: tuple[Any, ...] = _autograd().gather(members, root, tensor)
    return parts


def scatter(tensors: Sequence[Any], src: int = 0, group: Group | None = None) -> Any:
    """Return entry `rank` of the list of rank `src`; the others give a list of the same shapes.

    >>> import torch
    >>> def gradient():
    ...     parts = [torch.ones(1, requires_grad=True) for _ in range(2)]
    ...     y = functional.scatter(parts, src=1)
    ...     (y * dist.get_rank()).sum().backward()
    ...     return [x.grad.item() for x in parts]
    >>> unisono.spawn(gradient, 2)
    [[0.0, 0.0], [0.0, 1.0]]
    """
    _check_tensors(tensors, "tensors", "scatter")
    members = _members(group, "scatter")
    check_length(tensors, "parameter tensors", members.size)
    for tensor in tensors:
        check_shape(tensor.shape, tensors[0].shape, "parameter tensors: an entry")
    root = arguments.root(members, src, None, "src")
    return _autograd().scatter(members, root, *tensors)


def reduce(tensor: Any, dst: int, op: Any = ReduceOp.SUM, group: Group | None = None) -> Any:
    """Return the combined tensors on rank `dst`, and zeros on the others.

    >>> import torch
    >>> def gradient():
    ...     x = torch.ones(1, requires_grad=True)
    ...     y = functional.reduce(x, dst=1)
    ...     (3 * y).sum().backward()
    ...     return y.item(), x.grad.item()
    >>> unisono.spawn(gradient, 2)
    [(0.0, 3.0), (2.0, 3.0)]
    """
    _check_tensor(tensor, "tensor", "reduce")
    members = _members(group, "reduce")
    root = arguments.root(members, dst, None, "dst")
    operator = _operator(op, tensor, "tensor")
    return _autograd().reduce(operator, members, root, tensor)


def reduce_scatter(
    output: Any, input_list: Sequence[Any], op: Any = ReduceOp.SUM, group: Group | None = None
) -> Any:
    """Combine every rank's list and return entry `rank` of the result, which is in `output`.

    >>> import torch
    >>> def gradient():
    ...     parts = [torch.ones(1, requires_grad=True) for _ in range(2)]
    ...     y = functional.reduce_scatter(torch.empty(1), parts)
    ...     (y * dist.get_rank()).sum().backward()
    ...     return y.item(), [x.grad.item() for x in parts]
    >>> unisono.spawn(gradient, 2)
    [(2.0, [0.0, 1.0]), (2.0, [0.0, 1.0])]
    """
    _check_tensor(output, "output", "reduce_scatter")
    _check_tensors(input_list, "input_list", "reduce_scatter")
    members = _members(group, "reduce_scatter")
    operator = _operator(op, output, "output")
    return _autograd().reduce_scatter(operator, members, [output], *input_list)


def all_gather(tensor: Any, group: Group | None = None) -> tuple[Any, ...]:
    """Return every rank's tensor; all have one shape.

    >>> import torch
    >>> def gradient():
    ...     x = torch.ones(1, requires_grad=True)
    ...     torch.cat(functional.all_gather(x)).sum().backward()
    ...     return x.grad.tolist()
    >>> unisono.spawn(gradient, 3)
    [[3.0], [3.0], [3.0]]
    """
    _check_tensor(tensor, "tensor", "all_gather")
    members = _members(group, "all_gather")
    shapes = [tensor.shape] * members.size
    parts: tuple[Any, ...] = _autograd().all_gather(members, shapes, tensor)
    return parts


def _all_gather_base(output_tensor: Any, input_tensor: Any, group: Group | None = None) -> Any:
    """Collect every rank's tensor in one and return it; joined or stacked, as it is shaped."""
    _check_tensor(output_tensor, "output_tensor", "all_gather_single")
    _check_tensor(input_tensor, "input_tensor", "all_gather_single")
    members = _members(group, "_all_gather_base")
    return _autograd().all_gather_single(members, [output_tensor], input_tensor)


def all_to_all(
    output_tensor_list: Sequence[Any], input_tensor_list: Sequence[Any], group: Group | None = None
) -> tuple[Any, ...]:
    """Send entry j of the input list to rank j, and return what came, which is in the outputs.

    >>> import torch
    >>> def gradient():
    ...     parts = [torch.ones(1, requires_grad=True) for _ in range(2)]
    ...     outputs = functional.all_to_all([torch.empty(1), torch.empty(1)], parts)
    ...     (dist.get_rank() * torch.cat(outputs)).sum().backward()
    ...     return [x.grad.item() for x in parts]
    >>> unisono.spawn(gradient, 2)
    [[0.0, 1.0], [0.0, 1.0]]
    """
    _check_tensors(output_tensor_list, "output_tensor_list", "all_to_all")
    _check_tensors(input_tensor_list, "input_tensor_list", "all_to_all")
    members = _members(group, "all_to_all")
    outputs = list(output_tensor_list)
    parts: tuple[Any, ...] = _autograd().all_to_all(members, outputs, *input_tensor_list)
    return parts


def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group | None = None,
) -> Any:
    """Send rows of `input` to each rank, and return the rows that came, which are in `output`.

    >>> import torch
    >>> def gradient():
    ...     x = torch.ones(2, requires_grad=True)
    ...     y = functional.all_to_all_single(torch.empty(2), x)
    ...     (dist.get_rank() * y).sum().backward()
    ...     return x.grad.tolist()
    >>> unisono.spawn(gradient, 2)
    [[0.0, 1.0], [0.0, 1.0]]
    """
    _check_tensor(output, "output", "all_to_all_single")
    _check_tensor(input, "input", "all_to_all_single")
    members = _members(group, "all_to_all_single")
    splits = (output_split_sizes, input_split_sizes)
    return _autograd().all_to_all_single(members, [output], splits, input)


def all_reduce(tensor: Any, op: Any = ReduceOp.SUM, group: Group | None = None) -> Any:
    """Return the combined tensors of all ranks on every rank.

    >>> import torch
    >>> def gradient():
    ...     x = torch.ones(1, requires_grad=True)
    ...     y = functional.all_reduce(x)
    ...     y.sum().backward()
    ...     return y.item(), x.grad.item()
    >>> unisono.spawn(gradient, 3)
    [(3.0, 3.0), (3.0, 3.0), (3.0, 3.0)]
    """
    _check_tensor(tensor, "tensor", "all_reduce")
    members = _members(group, "all_reduce")
    operator = _operator(op, tensor, "tensor")
    return _autograd().all_reduce(operator, members, tensor)


# ---- arguments -----------------------------------------------------------------------------------


def _autograd() -> ModuleType:
    """The module that needs torch; it is there, because a tensor of it was given."""
    from unisono.torch.distributed.nn import autograd

    return autograd


def _members(group: Any, verb: str) -> Group:
    """The group; a rank that is not in it has no result that it could return."""
    found = arguments.group_of(group)
    if found.rank < 0:
        raise NotReady(
            f"{verb}: this rank is not in group {found.name!r} (world ranks {list(found.ranks)}); "
            "only members may call it"
        )
    return found


def _operator(op: Any, tensor: Any, name: str) -> ReduceOp:
    """The operator, if numbers of this tensor's dtype can be combined with it."""
    return arguments.operator(op, arguments.view(tensor.detach(), name))  # it may have a tangent


def _check_tensor(tensor: Any, name: str, verb: str) -> None:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        raise ArgumentTypeError(
            f"parameter {name}: expected a torch tensor, which can have a gradient, got "
            f"{type(tensor).__module__}.{type(tensor).__qualname__}; for other tensors there is "
            f"unisono.torch.distributed.{verb}"
        )


def _check_tensors(tensors: Any, name: str, verb: str) -> None:
    check_list(tensors, f"parameter {name}", (list, tuple))
    check_length(tensors, f"parameter {name}")
    for tensor in tensors:
        _check_tensor(tensor, name, verb)
