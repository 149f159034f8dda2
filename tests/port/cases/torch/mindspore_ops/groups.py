"""Groups are objects in torch and names in MindSpore."""
import torch
from mindspore import ops
import mindspore.communication as comm
import mindspore.mint.distributed as dist


class Layout:
    def __init__(self, pair: str | None):
        self.pair: str = pair


def layout(pair=None) -> Layout:
    return Layout(pair)


def mean(x: torch.Tensor, group: str = None) -> torch.Tensor:
    x[...] = ops.AllReduce(group=group if group is not None else comm.GlobalComm.WORLD_COMM_GROUP)(x) / comm.get_group_size(group if group is not None else comm.GlobalComm.WORLD_COMM_GROUP)
    return x


def end(group=None):
    comm.destroy_group(group) if group is not None else comm.release()


def main():
    rank = comm.get_rank()
    pair = dist.new_group([0, 1])
    tensor = torch.ones(1)
    tensor[...] = ops.AllReduce(group=dist.new_group(ranks=list(range(comm.get_group_size()))))(tensor)
    alone = [dist.new_group([one]) for one in range(comm.get_group_size())]
    end(alone[rank])
    value = torch.ones(1) * (rank + 1)
    if rank < 2:
        value = ops.AllReduce(group=pair)(value)
        value = ops.Broadcast(1, pair)((value,))[0]
        assert comm.get_group_size(pair) == 2
        assert comm.get_group_rank_from_world_rank(group=pair, world_rank_id=1) == 1
    everyone = torch.ones(1)
    everyone = ops.AllReduce()(everyone)
    everyone = ops.AllReduce()(everyone)
    everyone = ops.AllReduce(group=group_2 if (group_2 := layout().pair) is not None else comm.GlobalComm.WORLD_COMM_GROUP)(everyone)
    if rank < 2:
        value = ops.AllReduce(group=group_3 if (group_3 := layout(pair).pair) is not None else comm.GlobalComm.WORLD_COMM_GROUP)(value)
        mean(value, pair)
    mean(everyone)
    objects = [None] * comm.get_group_size()
    dist.all_gather_object(objects, {"rank": rank})
    return value.tolist() + everyone.tolist() + [one["rank"] for one in objects]
