"""CUDA tensors of ranks that share a GPU, on a group of backend "unisono": engine `cuda`.

Which engine serves them is tested on a GPU that is emulated, what it gives on a real one only
(`make test-gpu`).
"""

from __future__ import annotations

import copy
import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.helpers import cuda_emulator, cuda_on_cpu
from unisono.engines.cuda.gpu import driver
from unisono.torch.backend import shared_gpu

RANKS = 2
GPU = "cuda:0"

on_gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or driver.missing() is not None,
    reason=driver.missing() or "this torch sees no GPU",
)


# ---- who serves CUDA tensors ---------------------------------------------------------------------


def counted(world, cases):
    """How many GPUs the ranks find in each case; rank i sees GPU number `gpus[i]`, or none."""
    counts = []
    for gpus in cases:
        cuda_emulator.install()
        if gpus[world.rank] is None:
            driver.missing = lambda: "not installed"
        os.environ[cuda_emulator.GPU] = str(gpus[world.rank]) * 32
        group = world.split(range(world.size))  # asks anew what runs here
        counts.append(shared_gpu.count_gpus(group))
        group.close()
    return counts


@pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="no g++ to compile the kernels")
def test_all_ranks_count_the_same_gpus(all_worlds):
    cases = [(0, 0, 0), (1, 0, 1), (0, None, 0), (0, 1, 2)]
    counts = all_worlds.run("shm", 3, counted, cases, of_its_own=True)
    assert counts == [[1, 2, 0, 3]] * 3


def timeouts(world):
    """Those of calls on either memory, of a group that torch makes and then changes."""
    cuda_emulator.install()
    core = world.split(range(world.size))
    group = shared_gpu.GroupOnSharedGpu(core, dist.HashStore(), timedelta(seconds=20), None)
    engines = [core.engine_for(device) for device in ("cpu", "cuda")]
    before = [engine.timeout for engine in engines]
    group.set_timeout(timedelta(seconds=7))
    after = [engine.timeout for engine in engines]
    group.shutdown()
    return engines[0].communicator is not engines[1].communicator, before, after


@pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="no g++ to compile the kernels")
def test_each_memory_has_an_order_of_its_own_and_the_timeout_of_the_group(all_worlds):
    outcomes = all_worlds.run("shm", 2, timeouts, of_its_own=True)
    assert outcomes == [(True, [20, 20], [7, 7])] * 2


# ---- what they get -------------------------------------------------------------------------------


def values(rank, folder):
    assert type(dist.group.WORLD) is shared_gpu.GroupOnSharedGpu
    assert [device.type for device in dist.group.WORLD._device_types] == ["cpu", "cuda"]
    for device in ("cpu", GPU):
        tensor = torch.arange(4.0, device=device) + rank
        dist.all_reduce(tensor)
        assert tensor.tolist() == [1, 3, 5, 7]
        work = dist.all_reduce(tensor, async_op=True)
        doubled = work.get_future().then(lambda future: 2 * future.value()[0])
        assert doubled.wait().tolist() == [4, 12, 20, 28]
        parts = [torch.empty(4, device=device) for _ in range(RANKS)]
        dist.all_gather(parts, tensor + rank)
        assert [part.tolist() for part in parts] == [[2, 6, 10, 14], [3, 7, 11, 15]]
        out = torch.empty(2, device=device)
        dist.reduce_scatter_tensor(out, tensor)
        assert out.tolist() == [[4, 12], [20, 28]][rank]
        dist.all_to_all_single(out, torch.arange(2.0, device=device) + 10 * rank)
        assert out.tolist() == [rank, 10 + rank]
        if rank == 0:
            dist.send(tensor, 1)
        else:
            received = torch.empty_like(tensor)
            dist.recv(received, 0)
            assert received.tolist() == tensor.tolist()
        dist.barrier()


@on_gpu
def test_values(run):
    run(values)


each_device = pytest.mark.parametrize("device", ["cpu", pytest.param(GPU, marks=on_gpu)])


def uneven(rank, folder, device):
    """The first rank's tensor is elsewhere in each call, and the other one's is not."""
    source, kept = torch.full((3,), float(rank), device=device), []
    out = torch.empty(RANKS * (rank + 1), device=device)
    for _ in range(3):
        dist.all_to_all_single(out, source, [rank + 1] * RANKS, [1, 2])
        assert out.tolist() == [0.0] * (rank + 1) + [1.0] * (rank + 1)
        if rank == 0:
            kept.append(source)
            source = source.clone()


@each_device
def test_uneven_calls_on_other_memory(run, device):
    run(uneven, device)


def long_messages(rank, folder, device):
    """Too long to be copied aside: received in the other order, and while others are sent."""
    sent = [torch.full((1 << 20,), 10.0 * rank + tag, device=device) for tag in range(3)]
    received = [torch.empty(1 << 20, device=device) for _ in range(3)]
    works = [dist.irecv(received[tag], 1 - rank, tag=tag) for tag in (2, 0, 1)]
    works += [dist.isend(sent[tag], 1 - rank, tag=tag) for tag in range(3)]
    for work in works:
        work.wait()
    for tag, tensor in enumerate(received):
        assert (tensor == 10.0 * (1 - rank) + tag).all()


@each_device
def test_long_messages(run, device):
    run(long_messages, device)


def in_functions(rank, folder):
    tensor = torch.full((3,), 1.0 + rank, device=GPU)
    assert functional.all_reduce(tensor, "sum", dist.group.WORLD).tolist() == [3, 3, 3]
    joined = functional.all_gather_tensor(tensor, 0, dist.group.WORLD)
    assert joined.tolist() == [1, 1, 1, 2, 2, 2]


@on_gpu
def test_functional_collectives(run):
    run(in_functions)


def model():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).to(GPU)


def batch(rank):
    return torch.randn(6, 12, 32, generator=torch.Generator().manual_seed(rank)).to(GPU)


def gradients(network, rank):
    network(batch(rank)).square().mean().backward()
    return [parameter.grad for parameter in network.parameters()]


def average(rank, folder):
    """DDP's gradients are those of both ranks, added in their order and halved: the same bits."""
    torch.use_deterministic_algorithms(True)
    parts = [gradients(model(), each) for each in range(RANKS)]
    found = gradients(DistributedDataParallel(model(), device_ids=[0]), rank)
    for first, second, mean in zip(*parts, found, strict=True):
        assert torch.equal((first + second) / 2, mean)


@on_gpu
def test_ddp(run):
    run(average)


def whole_numbers(rank, folder, device):
    """With small whole numbers, arithmetic is exact: DDP has the bits of the CPU everywhere."""
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape):
        return torch.randint(-3, 4, shape, generator=generator).float()

    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(numbers(*parameter.shape))
    batches = [numbers(6, 8) for _ in range(RANKS)]
    parts = []
    for each in batches:
        alone = copy.deepcopy(network)
        alone(each).square().sum().backward()
        parts.append([parameter.grad for parameter in alone.parameters()])
    ids = None if device == "cpu" else [0]
    parallel = DistributedDataParallel(network.to(device), device_ids=ids)
    parallel(batches[rank].to(device)).square().sum().backward()
    for first, second, parameter in zip(*parts, parallel.parameters(), strict=True):
        assert torch.equal((first + second) / 2, parameter.grad.cpu())


@each_device
def test_ddp_has_the_bits_of_the_cpu(run, device):
    run(whole_numbers, device)


def sharded(rank, folder):
    """FSDP2 learns what DDP learns."""
    networks = [DistributedDataParallel(model(), device_ids=[0]), fully_shard(model())]
    for network in networks:
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        for _ in range(3):
            network(batch(rank)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    whole, parts = (list(network.parameters()) for network in networks)
    for one, part in zip(whole, parts, strict=True):
        torch.testing.assert_close(part.full_tensor(), one.data)


@on_gpu
def test_fsdp2(run):
    run(sharded)
