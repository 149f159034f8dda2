"""Results of comm_func inside expressions, and those for which a statement before would be wrong."""
import torch
from unisono.mindspore.communication import comm_func, get_group_size, get_rank


def mean(x):
    return comm_func.all_reduce(x)[0] / get_group_size()


def joined(x):
    rows = {"all": comm_func.all_gather_into_tensor(comm_func.all_reduce(x)[0])[0]}
    if comm_func.broadcast(x, 0).sum() > 5:
        rows["more"] = mean(x)
    elif comm_func.broadcast(x, 1).sum() > 1:
        rows["less"] = mean(x)
    return torch.cat(list(rows.values()))


def both(x):
    return comm_func.all_reduce(x)


def main():
    x = torch.ones(2) * (get_rank() + 1)
    total, _ = both(x)
    choice = get_rank() >= 0 and comm_func.all_reduce(x)[0].sum() > 0
    change = lambda t: comm_func.all_reduce(t)[0] + 1
    return torch.cat([mean(x), joined(x), total, change(x)]).tolist() + [bool(choice)]
