"""Lists that are gathered only to be joined, and lists that are used in other ways."""
import torch
from mindspore.communication import comm_func
import mindspore.communication as comm


@torch.no_grad()
def joined(tensor):
    # room for everyone
    # one of them
    # now gather

    # and join
    output, _ = comm_func.all_gather_into_tensor(tensor)  # along the first dimension
    return output


def returned(x, size):
    x = x * 2
    x = x.contiguous()
    parts, _ = comm_func.all_gather_into_tensor(x.detach())
    return parts


def stacked(x, size):
    rows, _ = comm_func.all_gather_into_tensor(x)
    return rows.reshape(size, *x.shape)


def same_name(x, size):
    results = []
    for _ in range(2):
        gathered, _ = comm_func.all_gather_into_tensor(x)
        results.append(gathered)
        x = x + 1
    return results


def get_data_group():
    return None


def deleted(x):
    parts, _ = comm_func.all_gather_into_tensor(x)
    whole = parts
    del parts
    return whole


def asynchronous(x, size):
    parts, work = comm_func.all_gather_into_tensor(x, async_op=True)
    doubled = x * 2
    work.wait()
    return parts + doubled.sum()


def gradient(x, size):
    parts = [torch.empty_like(x) for _ in range(size)]
    for part, piece in zip(parts, comm_func.all_gather_into_tensor(x)[0].chunk(len(parts))):
        part[...] = piece
    parts[comm.get_rank()] = x
    return torch.cat(parts)


def other_dimension(x, size):
    parts = [torch.empty_like(x) for _ in range(size)]
    for part, piece in zip(parts, comm_func.all_gather_into_tensor(x)[0].chunk(len(parts))):
        part[...] = piece
    return torch.cat(parts, dim=-1)


def twice(x, size):
    parts = [torch.empty_like(x) for _ in range(size)]
    for part, piece in zip(parts, comm_func.all_gather_into_tensor(x)[0].chunk(len(parts))):
        part[...] = piece
    return torch.cat(parts).sum() + parts[0]


def kept(x, size, store):
    parts = [torch.empty_like(x) for _ in range(size)]
    store.append(parts)
    for part, piece in zip(parts, comm_func.all_gather_into_tensor(x)[0].chunk(len(parts))):
        part[...] = piece
    return torch.cat(parts)


def captured(x, size):
    parts = [torch.empty_like(x) for _ in range(size)]
    read = lambda: parts[0]
    for part, piece in zip(parts, comm_func.all_gather_into_tensor(x)[0].chunk(len(parts))):
        part[...] = piece
    return torch.cat(parts) + read().sum()


def in_a_loop(x, size):
    found = []
    parts = [torch.empty_like(x) for _ in range(size)]
    for step in range(2):
        for part, piece in zip(parts, comm_func.all_gather_into_tensor(x + step)[0].chunk(len(parts))):
            part[...] = piece
        found.append(torch.cat(parts))
    return torch.cat(found)


def around_a_loop(x, size):
    parts, total = [x], 0
    for step in range(2):
        total = total + parts[0]
        parts = [torch.empty_like(x) for _ in range(size)]
        for part, piece in zip(parts, comm_func.all_gather_into_tensor(x)[0].chunk(len(parts))):
            part[...] = piece
        joined = torch.cat(parts)
    return joined + total.sum()


def pieces_of_another_shape(size):
    x = torch.ones(2, 1) * comm.get_rank()
    parts = [torch.empty(2, 1) for _ in range(size)]
    for part, piece in zip(parts, comm_func.all_gather_into_tensor(x)[0].chunk(len(parts))):
        part[...] = piece
    return torch.cat(parts).flatten()


def some_time_later(x, size):
    parts, _ = comm_func.all_gather_into_tensor(x)
    whole = x.sum()
    whole = parts + whole
    return whole


def one_branch(x, size, wanted):
    parts = [torch.empty_like(x) for _ in range(size)]
    for part, piece in zip(parts, comm_func.all_gather_into_tensor(x)[0].chunk(len(parts))):
        part[...] = piece
    if wanted:
        return torch.cat(parts)
    return parts[0]


def main():
    size, rank = comm.get_group_size(), comm.get_rank()
    x = torch.arange(2.0) + 10 * rank
    store = []
    results = [joined(x), returned(x, size), stacked(x, size).flatten(), *same_name(x, size)]
    results += [asynchronous(x, size), gradient(x, size), other_dimension(x, size), twice(x, size)]
    results += [kept(x, size, store), captured(x, size), in_a_loop(x, size), around_a_loop(x, size)]
    results += [pieces_of_another_shape(size), some_time_later(x, size), one_branch(x, size, True)]
    results.append(deleted(x))
    assert stacked(x, size).shape == (size, 2) and len(store[0]) == size
    return torch.cat(results).tolist()
