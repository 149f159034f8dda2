"""Where a call can stand, and what becomes of what it returns."""
from datetime import timedelta

import torch
import unisono.torch.distributed as dist


def nothing_is_returned(x):
    return dist.all_reduce(x)


def one_line(x, wanted):
    if wanted: dist.all_reduce(x)
    if wanted: x += 1; dist.all_reduce(x)


def perhaps_at_once(x, later):
    work = dist.all_reduce(x, async_op=later)
    y = torch.ones(1)
    if work is not None:
        work.wait()
    return x + y


def the_flag_decides(x, later):
    work = dist.all_reduce(x, async_op=later)
    if later:
        assert work is not None
        work.wait()


class Statistics:
    def __init__(self, x, size):
        self.x, self.size = x, size

    def reset(self):
        self.x = torch.zeros(1)

    def one_test(self):
        work = None
        if self.size > 1:
            work = dist.all_reduce(self.x, async_op=True)
        total = float(self.size)
        if work:
            work.wait()
        return total

    def two_tests(self):
        if self.size > 1:
            work = dist.all_reduce(self.x, async_op=True)
        total = self.size + 1
        if self.size > 1:
            work.wait()
        return total

    def another_tensor(self):
        kept = self.x
        work = dist.all_reduce(self.x, async_op=True)
        self.reset()
        work.wait()
        return kept


def new_tensor_and_handle(x, later):
    y = x.clone()
    work = dist.all_reduce(y, async_op=later)
    return y, work


def waited_for_elsewhere(x):
    y = x.clone()
    work = dist.all_reduce(y, async_op=True)

    def finish():
        work.wait()
        return 1

    return finish() * y


def exchanged(x):
    y = torch.empty_like(x)
    work = dist.all_to_all_single(y, x, async_op=True)
    return y, work


def with_a_timeout(x):
    y = x.clone()
    work = dist.all_reduce(y, async_op=True)
    work.wait(timedelta(minutes=1))
    return y


def tensor_and_handle(x, later):
    work = dist.all_reduce(x, async_op=later)
    return x, work


def handle(x):
    return dist.all_reduce(x, async_op=True)


def in_the_next_round(x):
    work = None
    for _ in range(3):
        if work is not None:
            work.wait()
        work = dist.all_reduce(x, async_op=True)
    work.wait()


def twice_on_the_way(x):
    first = dist.all_reduce(x, async_op=True)
    second = dist.all_reduce(x, async_op=True)
    first.wait()
    second.wait()


def another_test(x, wanted):
    work = dist.all_reduce(x, async_op=True)
    if wanted:
        work.wait()


def a_test_that_changes(x, wanted):
    if wanted:
        work = dist.all_reduce(x, async_op=True)
        wanted = x.numel() > 0
    if wanted:
        work.wait()


def passed_on(x, **options):
    return dist.all_reduce(x, **options)


def expressions(x, wanted):
    add = lambda t: dist.all_reduce(t)
    add(x)
    dist.all_reduce(x) if wanted else None
    wanted and dist.all_reduce(x)
    [dist.all_reduce(t) for t in [x]]
    done = dist.all_reduce(x)
    return done


def main():
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.arange(4.0) + rank
    results = [nothing_is_returned(x), expressions(x, True), passed_on(x, op=dist.ReduceOp.MAX)]
    one_line(x, True)
    results.append(perhaps_at_once(x, True).tolist() + perhaps_at_once(x, False).tolist())
    the_flag_decides(x, True)
    the_flag_decides(x, False)
    statistics = Statistics(x, size)
    results += [statistics.one_test(), statistics.two_tests(), statistics.another_tensor().tolist()]
    results.append(statistics.x.tolist())
    for later in (True, False):
        for function in (tensor_and_handle, new_tensor_and_handle):
            y, work = function(x, later)
            if later:
                work.wait()
            results.append(y.tolist())
    y, work = exchanged(x / size**9)
    work.wait()
    handle(y).wait()
    y += with_a_timeout(x) + waited_for_elsewhere(x)
    in_the_next_round(y)
    twice_on_the_way(y)
    another_test(y, True)
    a_test_that_changes(y, True)
    return [*results, *x.tolist(), *y.tolist()]
