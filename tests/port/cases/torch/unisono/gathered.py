"""Lists that are gathered only to be joined, and lists that are used in other ways."""
import torch
import unisono.torch.distributed as dist


@torch.no_grad()
def joined(tensor):
    # room for everyone
    parts = [torch.ones_like(tensor)  # one of them
             for _ in range(dist.get_world_size())]

    # now gather
    dist.all_gather(parts, tensor)

    # and join
    output = torch.cat(parts, dim=0)  # along the first dimension
    return output


def returned(x, size):
    x = x * 2
    parts = [torch.empty(x.shape, dtype=x.dtype) for _ in range(size)]
    x = x.contiguous()
    dist.all_gather(parts, x.detach())
    return torch.cat(parts)


def stacked(x, size):
    rows = [x.new_zeros(x.size()) for _ in range(size)]
    dist.all_gather(rows, x)
    return torch.stack(rows)


def same_name(x, size):
    results = []
    for _ in range(2):
        gathered = [torch.zeros_like(x) for _ in range(size)]
        dist.all_gather(gathered, x)
        gathered = torch.concat(gathered, 0)
        results.append(gathered)
        x = x + 1
    return results


def get_data_group():
    return None


def deleted(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group=get_data_group()))]
    dist.all_gather(parts, x)
    whole = torch.cat(parts)
    del parts
    return whole


def asynchronous(x, size):
    parts = [torch.empty_like(x) for _ in range(size)]
    work = dist.all_gather(parts, x, async_op=True)
    doubled = x * 2
    work.wait()
    return torch.cat(parts) + doubled.sum()


def gradient(x, size):
    parts = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(parts, x)
    parts[dist.get_rank()] = x
    return torch.cat(parts)


def other_dimension(x, size):
    parts = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(parts, x)
    return torch.cat(parts, dim=-1)


def twice(x, size):
    parts = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(parts, x)
    return torch.cat(parts).sum() + parts[0]


def kept(x, size, store):
    parts = [torch.empty_like(x) for _ in range(size)]
    store.append(parts)
    dist.all_gather(parts, x)
    return torch.cat(parts)


def captured(x, size):
    parts = [torch.empty_like(x) for _ in range(size)]
    read = lambda: parts[0]
    dist.all_gather(parts, x)
    return torch.cat(parts) + read().sum()


def in_a_loop(x, size):
    found = []
    parts = [torch.empty_like(x) for _ in range(size)]
    for step in range(2):
        dist.all_gather(parts, x + step)
        found.append(torch.cat(parts))
    return torch.cat(found)


def around_a_loop(x, size):
    parts, total = [x], 0
    for step in range(2):
        total = total + parts[0]
        parts = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(parts, x)
        joined = torch.cat(parts)
    return joined + total.sum()


def pieces_of_another_shape(size):
    x = torch.ones(2, 1) * dist.get_rank()
    parts = [torch.empty(2, 1) for _ in range(size)]
    dist.all_gather(parts, x)
    return torch.cat(parts).flatten()


def some_time_later(x, size):
    parts = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(parts, x)
    whole = x.sum()
    whole = torch.cat(parts, axis=0) + whole
    return whole


def one_branch(x, size, wanted):
    parts = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(parts, x)
    if wanted:
        return torch.cat(parts)
    return parts[0]


def main():
    size, rank = dist.get_world_size(), dist.get_rank()
    x = torch.arange(2.0) + 10 * rank
    store = []
    results = [joined(x), returned(x, size), stacked(x, size).flatten(), *same_name(x, size)]
    results += [asynchronous(x, size), gradient(x, size), other_dimension(x, size), twice(x, size)]
    results += [kept(x, size, store), captured(x, size), in_a_loop(x, size), around_a_loop(x, size)]
    results += [pieces_of_another_shape(size), some_time_later(x, size), one_branch(x, size, True)]
    results.append(deleted(x))
    assert stacked(x, size).shape == (size, 2) and len(store[0]) == size
    return torch.cat(results).tolist()
