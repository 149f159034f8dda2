"""torch takes the shape of the output: one row for each rank."""
import torch
import unisono.torch.distributed as dist


def main():
    mine = torch.arange(2.0) + 10 * dist.get_rank()
    rows = torch.empty(dist.get_world_size(), 2)
    dist.all_gather_into_tensor(rows, mine)
    return rows[-1].tolist() + list(rows.shape)
