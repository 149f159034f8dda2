"""Results of comm_func inside expressions, and those for which a statement before would be wrong."""
import torch
from mindspore.communication import comm_func
import torch.distributed as dist


def mean(x):
    result = x.clone()
    dist.all_reduce(result)
    return result / dist.get_world_size()


def joined(x):
    result_2 = x.clone()
    dist.all_reduce(result_2)
    result_3 = result_2.new_empty((dist.get_world_size(), *result_2.shape)).reshape(-1, *result_2.shape[1:])
    dist.all_gather_into_tensor(result_3, result_2)
    rows = {"all": result_3}
    result_4 = x.clone()
    dist.broadcast(result_4, 0)
    if result_4.sum() > 5:
        rows["more"] = mean(x)
    # unisono port: left as it is: a statement before this one would not always do the same; give the call a line of its own
    elif comm_func.broadcast(x, 1).sum() > 1:
        rows["less"] = mean(x)
    return torch.cat(list(rows.values()))


def both(x):
    # unisono port: left as it is: the pair that it returns is not taken apart here
    return comm_func.all_reduce(x)


def main():
    x = torch.ones(2) * (dist.get_rank() + 1)
    total, _ = both(x)
    # unisono port: left as it is: it stands where it is not evaluated once and always: in a lambda, a comprehension or a condition; give the call a li...
    choice = dist.get_rank() >= 0 and comm_func.all_reduce(x)[0].sum() > 0
    # unisono port: left as it is: it stands where it is not evaluated once and always: in a lambda, a comprehension or a condition; give the call a li...
    change = lambda t: comm_func.all_reduce(t)[0] + 1
    return torch.cat([mean(x), joined(x), total, change(x)]).tolist() + [bool(choice)]
