"""Where a call can stand, and what becomes of what it returns."""
from datetime import timedelta

import torch
import torch.distributed as dist
from mindspore.communication import comm_func
import mindspore.communication as comm


def nothing_is_returned(x):
    x[...] = comm_func.all_reduce(x)[0]
    return None


def one_line(x, wanted):
    if wanted: x[...] = comm_func.all_reduce(x)[0]
    if wanted: x += 1; x[...] = comm_func.all_reduce(x)[0]


def perhaps_at_once(x, later):
    result, work = comm_func.all_reduce(x, async_op=later)
    if work is None:
        x[...] = result
    y = torch.ones(1)
    if work is not None:
        work.wait()
        x[...] = result
    return x + y


def the_flag_decides(x, later):
    result_2, work = comm_func.all_reduce(x, async_op=later)
    if work is None:
        x[...] = result_2
    if later:
        assert work is not None
        work.wait()
        x[...] = result_2


class Statistics:
    def __init__(self, x, size):
        self.x, self.size = x, size

    def reset(self):
        self.x = torch.zeros(1)

    def one_test(self):
        work = None
        if self.size > 1:
            tensor = self.x
            result_3, work = comm_func.all_reduce(self.x, async_op=True)
        total = float(self.size)
        if work:
            work.wait()
            tensor[...] = result_3
        return total

    def two_tests(self):
        if self.size > 1:
            tensor_2 = self.x
            result_4, work = comm_func.all_reduce(self.x, async_op=True)
        total = self.size + 1
        if self.size > 1:
            work.wait()
            tensor_2[...] = result_4
        return total

    def another_tensor(self):
        kept = self.x
        tensor_3 = self.x
        result_5, work = comm_func.all_reduce(self.x, async_op=True)
        self.reset()
        work.wait()
        tensor_3[...] = result_5
        return kept


def new_tensor_and_handle(x, later):
    y = x.clone()
    y, work = comm_func.all_reduce(y, async_op=later)
    return y, work


def waited_for_elsewhere(x):
    y = x.clone()
    y, work = comm_func.all_reduce(y, async_op=True)

    def finish():
        work.wait()
        return 1

    return finish() * y


def exchanged(x):
    y = torch.empty_like(x)
    y, work = comm_func.all_to_all_single_with_output_shape(y.shape, x, async_op=True)
    return y, work


def with_a_timeout(x):
    y = x.clone()
    # unisono port: left as it is: MindSpore's handles wait without a timeout
    work = dist.all_reduce(y, async_op=True)
    work.wait(timedelta(minutes=1))
    return y


def tensor_and_handle(x, later):
    # unisono port: left as it is: another line uses the handle in a way that hides when the result is there; mindspore:mint keeps the tensor in place
    work = dist.all_reduce(x, async_op=later)
    return x, work


def handle(x):
    # unisono port: left as it is: it returns the handle, and the caller would need the result beside it; mindspore:mint keeps the tensor in place
    return dist.all_reduce(x, async_op=True)


def in_the_next_round(x):
    work = None
    for _ in range(3):
        if work is not None:
            work.wait()
        # unisono port: left as it is: the program waits above the call, in the next round of a loop
        work = dist.all_reduce(x, async_op=True)
    work.wait()


def twice_on_the_way(x):
    # unisono port: left as it is: 'x' goes into another call before the program waits
    first = dist.all_reduce(x, async_op=True)
    # unisono port: left as it is: 'x' is still on its way: another line has it too
    second = dist.all_reduce(x, async_op=True)
    first.wait()
    second.wait()


def another_test(x, wanted):
    # unisono port: left as it is: another line uses the handle in a way that hides when the result is there; mindspore:mint keeps the tensor in place
    work = dist.all_reduce(x, async_op=True)
    if wanted:
        work.wait()


def a_test_that_changes(x, wanted):
    if wanted:
        # unisono port: left as it is: another line uses the handle in a way that hides when the result is there; mindspore:mint keeps the tensor in place
        work = dist.all_reduce(x, async_op=True)
        wanted = x.numel() > 0
    if wanted:
        work.wait()


def passed_on(x, **options):
    # unisono port: left as it is: it passes arguments with * or **, so which ones is not known here
    return dist.all_reduce(x, **options)


def expressions(x, wanted):
    # unisono port: left as it is: what it returns is used in an expression; give the call a line of its own, or use mindspore:mint
    add = lambda t: dist.all_reduce(t)
    add(x)
    # unisono port: left as it is: what it returns is used in an expression; give the call a line of its own, or use mindspore:mint
    dist.all_reduce(x) if wanted else None
    # unisono port: left as it is: what it returns is used in an expression; give the call a line of its own, or use mindspore:mint
    wanted and dist.all_reduce(x)
    # unisono port: left as it is: what it returns is used in an expression; give the call a line of its own, or use mindspore:mint
    [dist.all_reduce(t) for t in [x]]
    # unisono port: left as it is: what it returns is used, and without async_op torch returns None
    done = dist.all_reduce(x)
    return done


def main():
    rank, size = comm.get_rank(), comm.get_group_size()
    x = torch.arange(4.0) + rank
    # unisono port: left as it is: ReduceOp is used as a value, and mindspore writes it in another way
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
