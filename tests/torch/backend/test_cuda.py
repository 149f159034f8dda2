"""CUDA tensors on a group of backend "unisono", where there is a GPU: nccl serves them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

import torch.distributed as dist  # noqa: E402  (comes after the check for a GPU)
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from unisono.torch.backend.nccl import GroupWithNccl  # noqa: E402

GPU = torch.device("cuda", 0)


@pytest.fixture
def group() -> Iterator[Any]:
    # One GPU is one rank for nccl.
    dist.init_process_group("unisono", store=dist.HashStore(), rank=0, world_size=1, device_id=GPU)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture(params=["cpu", "cuda:0"])
def tensor(request, group) -> Any:
    return torch.arange(4.0, device=request.param)


def test_both_kinds_of_tensors_are_reduced(group, tensor):
    assert isinstance(group, GroupWithNccl)
    assert [device.type for device in group._device_types] == ["cpu", "cuda"]
    dist.all_reduce(tensor)
    work = dist.all_reduce(tensor, op=dist.ReduceOp.MAX, async_op=True)
    work.wait()
    dist.reduce(tensor, 0)
    assert tensor.tolist() == [0, 1, 2, 3]
    (value,) = dist.all_reduce(tensor, async_op=True).get_future().wait()
    assert value.device == tensor.device and value.tolist() == [0, 1, 2, 3]


def test_both_kinds_of_tensors_are_moved(group, tensor):
    def room() -> Any:
        return torch.zeros_like(tensor)

    dist.broadcast(tensor, 0)
    outputs = {name: room() for name in ("all_gather", "gather", "scatter", "all_to_all")}
    dist.all_gather([outputs["all_gather"]], tensor)
    dist.gather(tensor, [outputs["gather"]], dst=0)
    dist.scatter(outputs["scatter"], [tensor], src=0)
    dist.all_to_all([outputs["all_to_all"]], [tensor])
    outputs["all_to_all_single"] = room()
    dist.all_to_all_single(outputs["all_to_all_single"], tensor)
    outputs["reduce_scatter"] = room()
    dist.reduce_scatter(outputs["reduce_scatter"], [tensor])
    for name in ("_allgather_base", "_reduce_scatter_base"):
        outputs[name] = room()
        getattr(group, name)(outputs[name], tensor).wait()
    for name in ("allgather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced"):
        first, second = room(), room()
        getattr(group, name)([first, second], [tensor, 2 * tensor]).wait()
        assert second.tolist() == [0, 2, 4, 6]
        outputs[name] = first
    for name, output in outputs.items():
        assert output.device == tensor.device and output.tolist() == [0, 1, 2, 3], name


@pytest.mark.thorough
def test_functional_collectives(group, tensor):
    from torch.distributed import _functional_collectives as functional

    summed = functional.all_reduce(tensor, "sum", group)
    gathered = functional.all_gather_tensor(tensor, 0, group)
    assert summed.tolist() == gathered.tolist() == [0, 1, 2, 3]


def test_barriers(group):
    dist.barrier()
    dist.barrier(device_ids=[0])


def test_subgroups_serve_both(group):
    first = dist.new_group([0])
    group.bound_device_id = GPU  # torch sets it only for groups that it makes itself
    for made in (first, group.split_group([0]), dist.split_group(group, [[0]])):
        assert isinstance(made, GroupWithNccl)
        for device in ("cpu", GPU):
            tensor = torch.ones(2, device=device)
            dist.all_reduce(tensor, group=made)
            assert tensor.tolist() == [1, 1]


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_models_on_both(group, device):
    torch.manual_seed(0)
    plain = torch.nn.Linear(4, 4).to(device)
    wrapped = DistributedDataParallel(plain)
    wrapped(torch.ones(2, 4, device=device)).sum().backward()
    assert plain.weight.grad.tolist() == [[2.0] * 4] * 4
