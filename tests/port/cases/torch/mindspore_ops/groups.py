"""Groups are objects in torch and names in MindSpore."""
import torch
import mindspore.communication as comm
import mindspore.mint.distributed as dist
from mindspore import ops


def main():
    rank = comm.get_rank()
    pair = dist.new_group([0, 1])
    value = torch.ones(1) * (rank + 1)
    if rank < 2:
        value = ops.AllReduce(group=pair)(value)
        value = ops.Broadcast(1, pair)((value,))[0]
        assert comm.get_group_size(pair) == 2
        assert comm.get_group_rank_from_world_rank(group=pair, world_rank_id=1) == 1
    everyone = torch.ones(1)
    everyone = ops.AllReduce()(everyone)
    everyone = ops.AllReduce()(everyone)
    objects = [None] * comm.get_group_size()
    dist.all_gather_object(objects, {"rank": rank})
    return value.tolist() + everyone.tolist() + [one["rank"] for one in objects]
