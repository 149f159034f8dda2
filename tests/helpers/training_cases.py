"""Trainings of a small transformer, the same on any backend of torch.distributed.

`joined(world, backend, path, case, *args)` is what a rank of a pool runs: it joins a group of the
backend, calls `case(*args)` and leaves. Cases return losses and digests; each rank has other data.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.helpers import worlds

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "`torch.jit.* is deprecated", DeprecationWarning)
    import torch.distributed.optim

WORDS = 29
WIDTH = 32
HEADS = 4
LENGTH = 12
BATCH = 6  # of each rank
STEPS = 20

_TIMEOUT = timedelta(seconds=40)

#: What torch warns of when nothing is wrong, whatever the backend.
_TORCHS_OWN = (
    "FSDP2-wrapped module .* returned a view tensor",  # the last layer is linear, in 3-D
    "torch.distributed.nn.functional.* is deprecated",  # people still use it
    "`torch.jit.* is deprecated",  # torch uses it when it is asked to compile
    "The .grad attribute of a Tensor that is not a leaf Tensor",  # torch asks for it
)


#: Gloo's groups. One whose last owner is a callback is freed in its own thread, which aborts.
_KEPT = []


def joined(world, backend, path, case, *args):
    """Run a case as a member of a group of the backend, with all warnings as errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for text in _TORCHS_OWN:
            warnings.filterwarnings("ignore", text)
        dist.init_process_group(
            backend,
            init_method=f"file://{path}",
            rank=world.rank,
            world_size=world.size,
            timeout=_TIMEOUT,
        )
        if backend == "gloo":
            _KEPT.append(dist.group.WORLD)
        try:
            torch.manual_seed(5)
            return case(*args)
        finally:
            dist.destroy_process_group()


class Runner:
    """Runs cases on pools of ranks that are kept; each time in a group of its own."""

    def __init__(self, folder):
        self.pools = worlds.Worlds()
        self.folder = folder
        self.environment = {
            "PYTHONFAULTHANDLER": "1",  # a crash says where
            "OMP_NUM_THREADS": "1",  # the ranks share few cores; and sums keep one order
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        self.count = itertools.count()

    def run(self, backend, ranks, case, *args):
        """What the case returns on each rank."""
        path = str(self.folder / f"store-{next(self.count)}")
        with pytest.MonkeyPatch.context() as patch:  # for ranks that start now
            for name, value in self.environment.items():
                patch.setenv(name, value)
            return self.pools.run("shm", ranks, joined, backend, path, case, *args)

    def close(self):
        self.pools.close()


def assert_alike(ours, theirs, rel=1e-5):
    """The numbers of each step agree to rounding, on each rank."""
    for rank, ((found, _), (expected, _)) in enumerate(zip(ours, theirs, strict=True)):
        assert len(expected) > 10 and expected[0] != expected[-1]
        assert found == pytest.approx(expected, rel=rel), f"rank {rank}"


# ---- the model and its data ----------------------------------------------------------------------


class Block(nn.Module):
    """Attention and two linear layers, each added to what came in."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norms[0](x)
        # As many heads as there are: a rank may hold some of them only.
        heads = [
            layer(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Transformer(nn.Module):
    """Words in, scores for the next word out."""

    def __init__(self, sparse=False):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH, sparse=sparse)
        self.places = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        return self.head(self.blocks(self.embedding(words) + self.places))


def sentences(step, rank=None, count=BATCH):
    """Words that follow a rule, with a few misprints; rank and step choose them."""
    rank = dist.get_rank() if rank is None else rank
    chance = torch.Generator().manual_seed(1000 * rank + step)
    words = [torch.randint(WORDS, (count,), generator=chance)]
    for _ in range(LENGTH):
        words.append((words[-1] * 3 + 5) % WORDS)
    whole = torch.stack(words, dim=1)
    wrong = torch.rand(whole.shape, generator=chance) < 0.05
    whole = torch.where(wrong, torch.randint(WORDS, whole.shape, generator=chance), whole)
    return whole[:, :-1], whole[:, 1:]


def loss_of(scores, target):
    return functional.cross_entropy(scores.flatten(0, 1), target.flatten())


def seeded(seed=11, **options):
    torch.manual_seed(seed)
    return Transformer(**options)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def whole(tensor):
    """The whole tensor, gathered if it is sharded over ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def digest(model):
    """A hash of all bits of the parameters and buffers."""
    state = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        state.update(name.encode())
        # A copy, because FSDP1 frees memory that numpy must not refer to.
        state.update(whole(tensor).detach().flatten().clone().view(torch.uint8).numpy())
    return state.hexdigest()


def run(model, optimizer, steps=STEPS, rank=None):
    """Train; the loss of each step."""
    losses = []
    for step in range(steps):
        words, target = sentences(step, rank)
        optimizer.zero_grad()
        loss = loss_of(model(words), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# ---- DDP -----------------------------------------------------------------------------------------


def wrapped(model, bucket_cap_mb=0.02, **options):
    """The model in DDP, with several buckets: the default would put all into one."""
    return DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb, **options)


def ddp(options):
    """Ranks begin with different weights: DDP has to broadcast those of rank 0."""
    model = wrapped(seeded(11 + dist.get_rank()), **options)
    losses = run(model, adam(model))
    buckets = model._get_ddp_logging_data()["rebuilt_bucket_sizes"].split(",")
    assert len(buckets) > 3, buckets
    return losses, digest(model)


def ddp_accumulating():
    """Two batches of three are not synchronised; their gradients are reduced with the third."""
    model = wrapped(seeded())
    optimizer = adam(model)
    losses, apart = [], 0
    for step in range(STEPS):
        words, target = sentences(step)
        last = step % 3 == 2
        with contextlib.nullcontext() if last else model.no_sync():
            loss = loss_of(model(words), target)
            loss.backward()
        losses.append(loss.item())
        gradients = [None] * dist.get_world_size()
        dist.all_gather_object(gradients, model.module.head.bias.grad.tolist())
        apart += gradients[0] != gradients[1]
        if last:
            optimizer.step()
            optimizer.zero_grad()
    assert apart == STEPS - STEPS // 3, apart
    return losses, digest(model)


class Choosy(nn.Module):
    """Uses one of its two heads, and not the same one on all ranks."""

    def __init__(self):
        super().__init__()
        self.base = seeded()
        self.base.head = nn.Identity()
        self.heads = nn.ModuleList([nn.Linear(WIDTH, WORDS) for _ in range(3)])
        self.turn = 0

    def forward(self, words):
        self.turn += 1
        return self.heads[(self.turn + dist.get_rank()) % 2](self.base(words))


def ddp_unused():
    model = wrapped(Choosy(), find_unused_parameters=True)
    losses = run(model, adam(model))
    assert all(parameter.grad is None for parameter in model.module.heads[2].parameters())
    return losses, digest(model)


class Normed(nn.Module):
    """Has buffers, which follow those of rank 0."""

    def __init__(self):
        super().__init__()
        self.base = seeded()
        self.base.head = nn.Identity()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        return self.head(self.norm(self.base(words).transpose(1, 2)).transpose(1, 2))


def ddp_buffers():
    model = wrapped(Normed())
    losses = run(model, adam(model))
    model(sentences(0)[0])  # its buffers are broadcast before a forward pass, and change in it
    with torch.no_grad():
        model.module.norm.momentum = 0.0
        model(sentences(0)[0])
    return losses, digest(model)


def ddp_sparse():
    """The embedding's gradients hold only the rows of words that occurred."""
    model = wrapped(seeded(sparse=True))
    dense = [p for name, p in model.named_parameters() if "embedding" not in name]
    optimizers = (
        torch.optim.Adam(dense, lr=0.01),
        torch.optim.SparseAdam(model.module.embedding.parameters(), lr=0.01),
    )
    losses = []
    for step in range(STEPS):
        words, target = sentences(step, count=1)
        loss = loss_of(model(words), target)
        loss.backward()
        assert model.module.embedding.weight.grad.is_sparse
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses, digest(model)


def ddp_joining():
    """Ranks have different numbers of batches; those that have finished shadow the others."""
    model = wrapped(seeded())
    optimizer = adam(model)
    with Join([model]):
        losses = run(model, optimizer, STEPS - 5 * (dist.get_rank() == 0))
    return losses, digest(model)


# ---- sharded -------------------------------------------------------------------------------------


def sharded(mesh=None):
    """FSDP2: each rank keeps a share of every parameter, and blocks are collected when used."""
    model = seeded()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp2():
    model = sharded()
    assert model.head.weight.to_local().numel() < model.head.weight.numel()
    return run(model, adam(model)), digest(model)


def fsdp2_clipped():
    """Gradients are clipped; their norm is over all shards."""
    model = sharded()
    optimizer = adam(model)
    norms = []
    for step in range(STEPS):
        words, target = sentences(step)
        optimizer.zero_grad()
        loss_of(model(words), target).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1).full_tensor().item()
        assert norm > 0.1
        optimizer.step()
        norms.append(norm)
    return norms, digest(model)


def fsdp1():
    model = FullyShardedDataParallel(
        seeded(),
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    losses = run(model, adam(model))
    with FullyShardedDataParallel.summon_full_params(model):
        return losses, digest(model.module)


PLAN = {name: ColwiseParallel() for name in ("query", "key", "value", "up")} | {
    name: RowwiseParallel() for name in ("out", "down")
}


def tensor_parallel():
    """All ranks have the same data, and each has half of every block."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = seeded()
    for block in model.blocks:
        parallelize_module(block, mesh, PLAN)
    assert model.blocks[0].up.weight.to_local().shape == (2 * WIDTH // mesh.size(), WIDTH)
    return run(model, adam(model), rank=0), digest(model)


def two_dimensions():
    """Blocks are cut between neighbours, and what each holds is sharded over the other axis."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    model = seeded()
    for block in model.blocks:
        parallelize_module(block, mesh["model"], PLAN)
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    return run(model, adam(model), rank=mesh["data"].get_local_rank()), digest(model)


def hybrid_shards():
    """HSDP: two copies of a model that is sharded over two ranks."""
    model = sharded(init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards")))
    return run(model, adam(model)), digest(model)
