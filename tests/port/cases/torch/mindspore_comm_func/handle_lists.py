"""Handles in lists: the result is there after the loop that waits."""
import torch
import torch.distributed as dist
from mindspore.communication import comm_func
import mindspore.communication as comm


def appended(tensors):
    handles = []
    for one in tensors:
        result, handle_2 = comm_func.all_reduce(one, async_op=True)
        handles.append((one, result, handle_2))
    # all are on their way
    for tensor_2, result, handle in handles:
        handle.wait()  # one after another
        tensor_2[...] = result
    return len(handles)


def listed(tensors):
    works = [(t, *comm_func.all_reduce(t, "max", async_op=True)) for t in tensors if t.numel()]
    for tensor_2, result, work in works:
        work.wait()
        tensor_2[...] = result


def named(table, rank):
    pending = []
    for key in table:
        table[key] = table[key] + rank
        tensor_3 = table[key].view(-1)
        result_2, handle = comm_func.all_reduce(tensor_3, async_op=True)
        pending.append((tensor_3, result_2, handle))
    if pending:
        print(end="")
    for tensor_2, result, handle in pending: handle.wait(); tensor_2[...] = result


def two_loops(first, second):
    handles = list()
    for t in first:
        t += 1
        # unisono port: left as it is: another line puts a handle into the same list, and stays as it is
        handles.append(dist.all_reduce(t, async_op=True))
    for t in second:
        # unisono port: left as it is: 't' is still on its way: another line has it too
        handles.append(dist.all_reduce(t, async_op=True))
    for handle in handles:
        handle.wait()


def again(tensors):
    handles: list = []
    for _ in range(2):
        for one in tensors:
            result, handle_2 = comm_func.all_reduce(one, async_op=True)
            handles.append((one, result, handle_2))
        for tensor_2, result, handle in handles:
            handle.wait()
            tensor_2[...] = result
        handles.clear()


def one_name_for_two(first, second):
    handles = [(t, *comm_func.all_reduce(t, async_op=True)) for t in first]
    for tensor_2, result, handle in handles:
        handle.wait()
        tensor_2[...] = result
    handles = []
    for t in second:
        result, handle_2 = comm_func.all_reduce(t, async_op=True)
        handles.append((t, result, handle_2))
    for tensor_2, result, handle in handles:
        handle.wait()
        tensor_2[...] = result


def gathered(tensors, size):
    results = []
    handles = []
    for one in tensors:
        parts = [torch.zeros_like(one) for _ in range(size)]
        result, handle_2 = comm_func.all_gather_into_tensor(one, async_op=True)
        handles.append((parts, result, handle_2))
        results.append(parts)
    for tensor_2, result, handle in handles:
        handle.wait()
        for part, piece in zip(tensor_2, result.chunk(len(tensor_2))):
            part[...] = piece
    return results


def fresh(rank):
    handles = []
    a, b = torch.ones(1) * rank, torch.ones(1)
    c = torch.ones(1) + rank
    result_3, work = comm_func.all_reduce(c, async_op=True)
    handles.append((c, result_3, work))
    for tensor_2, result, handle in handles:
        handle.wait()
        tensor_2[...] = result
    return a + b + c


def same_tensor(x):
    handles = []
    # unisono port: left as it is: 'x' goes into another call before the program waits
    handles.append(dist.all_reduce(x, async_op=True))
    # unisono port: left as it is: 'x' is still on its way: another line has it too
    handles.append(dist.all_reduce(x, async_op=True))
    for handle in handles:
        handle.wait()


def same_tensor_in_a_loop(x):
    handles = []
    for _ in range(2):
        # unisono port: left as it is: each round of a loop may have the same tensor, and needs the result of the last
        handles.append(dist.all_reduce(x, async_op=True))
    for handle in handles:
        handle.wait()


def never_emptied(tensors):
    handles = []
    for one in tensors:
        # unisono port: left as it is: 'handles' is not emptied, so the program waits twice; mindspore:mint keeps the tensors in place
        handles.append(dist.all_reduce(one, async_op=True))
        for handle in handles:
            handle.wait()


def returned(tensors):
    handles = []
    for one in tensors:
        # unisono port: left as it is: another line uses the handles in 'handles' in a way that hides when the results are there; mindspore:mint keeps the ...
        handles.append(dist.all_reduce(one, async_op=True))
    return handles


def two_kinds(x, y):
    handles = []
    # unisono port: left as it is: another line puts a handle of another function into the list; mindspore:mint keeps the tensors in place
    handles.append(dist.all_reduce(x, async_op=True))
    # unisono port: left as it is: another line puts a handle of another function into the list; mindspore:mint keeps the tensors in place
    handles.append(dist.reduce_scatter_tensor(y, torch.ones(y.numel() * comm.get_group_size()), async_op=True))
    for handle in handles:
        handle.wait()


def one_of_them_stays(x, y):
    handles = []
    # unisono port: left as it is: MindSpore has no operator BOR
    handles.append(dist.all_reduce(x, op=dist.ReduceOp.BOR, async_op=True))
    # unisono port: left as it is: another line puts a handle into the same list, and stays as it is
    handles.append(dist.all_reduce(y, async_op=True))
    for handle in handles:
        handle.wait()


def perhaps(x, wanted):
    handles = []
    # unisono port: left as it is: the program may not reach the loop that waits for 'handles'
    handles.append(dist.all_reduce(x, async_op=True))
    if wanted:
        for handle in handles:
            handle.wait()


def main():
    rank, size = comm.get_rank(), comm.get_group_size()

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
