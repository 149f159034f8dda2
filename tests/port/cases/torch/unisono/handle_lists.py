"""Handles in lists: the result is there after the loop that waits."""
import torch
import unisono.torch.distributed as dist


def appended(tensors):
    handles = []
    for one in tensors:
        handles.append(dist.all_reduce(one, async_op=True))
    # all are on their way
    for handle in handles:
        handle.wait()  # one after another
    return len(handles)


def listed(tensors):
    works = [dist.all_reduce(t, dist.ReduceOp.MAX, async_op=True) for t in tensors if t.numel()]
    [work.wait() for work in works]


def named(table, rank):
    pending = []
    for key in table:
        table[key] = table[key] + rank
        handle = dist.all_reduce(table[key].view(-1), async_op=True)
        pending.append(handle)
    if pending:
        print(end="")
    for handle in pending: handle.wait()


def two_loops(first, second):
    handles = list()
    for t in first:
        t += 1
        handles.append(dist.all_reduce(t, async_op=True))
    for t in second:
        handles.append(dist.all_reduce(t, async_op=True))
    for handle in handles:
        handle.wait()


def again(tensors):
    handles: list = []
    for _ in range(2):
        for one in tensors:
            handles.append(dist.all_reduce(one, async_op=True))
        for handle in handles:
            handle.wait()
        handles.clear()


def one_name_for_two(first, second):
    handles = [dist.all_reduce(t, async_op=True) for t in first]
    for handle in handles:
        handle.wait()
    handles = []
    for t in second:
        handles.append(dist.all_reduce(t, async_op=True))
    for handle in handles:
        handle.wait()


def gathered(tensors, size):
    results = []
    handles = []
    for one in tensors:
        parts = [torch.zeros_like(one) for _ in range(size)]
        handles.append(dist.all_gather(parts, one, async_op=True))
        results.append(parts)
    for handle in handles:
        handle.wait()
    return results


def fresh(rank):
    handles = []
    a, b = torch.ones(1) * rank, torch.ones(1)
    c = torch.ones(1) + rank
    work = dist.all_reduce(c, async_op=True)
    handles.append(work)
    for handle in handles:
        handle.wait()
    return a + b + c


def same_tensor(x):
    handles = []
    handles.append(dist.all_reduce(x, async_op=True))
    handles.append(dist.all_reduce(x, async_op=True))
    for handle in handles:
        handle.wait()


def same_tensor_in_a_loop(x):
    handles = []
    for _ in range(2):
        handles.append(dist.all_reduce(x, async_op=True))
    for handle in handles:
        handle.wait()


def never_emptied(tensors):
    handles = []
    for one in tensors:
        handles.append(dist.all_reduce(one, async_op=True))
        for handle in handles:
            handle.wait()


def returned(tensors):
    handles = []
    for one in tensors:
        handles.append(dist.all_reduce(one, async_op=True))
    return handles


def two_kinds(x, y):
    handles = []
    handles.append(dist.all_reduce(x, async_op=True))
    handles.append(dist.reduce_scatter_tensor(y, torch.ones(y.numel() * dist.get_world_size()), async_op=True))
    for handle in handles:
        handle.wait()


def one_of_them_stays(x, y):
    handles = []
    handles.append(dist.all_reduce(x, op=dist.ReduceOp.BOR, async_op=True))
    handles.append(dist.all_reduce(y, async_op=True))
    for handle in handles:
        handle.wait()


def perhaps(x, wanted):
    handles = []
    handles.append(dist.all_reduce(x, async_op=True))
    if wanted:
        for handle in handles:
            handle.wait()


def main():
    rank, size = dist.get_rank(), dist.get_world_size()

    def some():
        return [torch.ones(2) * rank, torch.arange(2.0) + rank]

    tensors = some()
    count = appended(tensors)
    listed(tensors)
    table = {"a": torch.ones(2), "b": torch.zeros(1)}
    named(table, rank)
    tensors += table.values()
    two_loops(some(), tensors)
    again(tensors)
    one_name_for_two(tensors[:1], tensors[1:])
    for parts in gathered(tensors, size):
        tensors.append(torch.cat(parts))
    tensors.append(fresh(rank))
    same_tensor(tensors[0])
    same_tensor_in_a_loop(tensors[1])
    never_emptied(tensors)
    for handle in returned(tensors):
        handle.wait()
    two_kinds(tensors[0], tensors[1])
    bits = torch.tensor([1 << rank])
    one_of_them_stays(bits, tensors[0])
    perhaps(tensors[0], True)
    return [*torch.cat(tensors).tolist(), *bits.tolist(), count]
