"""Train with DistributedDataParallel, on unisono: `unisono run -n 2 <this file>`.

All of it is plain torch, and `torchrun --nproc-per-node 2 <this file>` starts it as well. Only the
name of the backend differs from a script for Gloo: try `--backend gloo`.
"""

from __future__ import annotations

import argparse
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

CLASSES = 3
POINTS = 500  # of each class
EPOCHS = 12
BATCH = 50  # of each rank


def spirals() -> Dataset:
    """Points on three spiral arms; the class of a point is its arm."""
    radius = torch.linspace(0.05, 1.0, POINTS).repeat(CLASSES)
    labels = torch.arange(CLASSES).repeat_interleave(POINTS)
    angle = 2 * math.pi * labels / CLASSES + 4 * radius + 0.15 * torch.randn(CLASSES * POINTS)
    points = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)
    return TensorDataset(points, labels)


def main() -> None:
    """Join the group, train, leave."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="unisono")
    dist.init_process_group(parser.parse_args().backend)
    rank = dist.get_rank()

    torch.manual_seed(1)  # the same data on all ranks; DDP itself broadcasts rank 0's weights
    data = spirals()
    sampler = DistributedSampler(data, seed=1)  # gives every rank its own share
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    network = nn.Sequential(
        nn.Linear(2, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, CLASSES)
    )
    model = DDP(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss_of = nn.CrossEntropyLoss()

    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for points, labels in loader:
            optimizer.zero_grad()
            loss = loss_of(model(points), labels)
            loss.backward()  # while it runs, DDP averages the gradients over all ranks
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if rank == 0:
            mean = total.item() / len(loader) / dist.get_world_size()
            print(f"epoch {epoch:2} loss {mean:.9g}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
