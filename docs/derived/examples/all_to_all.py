"""Examples of all_to_all."""

import numpy as np

import unisono.torch.distributed as dist
from unisono.mindspore import ops
from unisono.mindspore.communication import comm_func


def example_torch(rank):
    inputs = [np.array([10 * rank + i]) for i in range(4)]
    outputs = [np.empty(1, int) for _ in range(4)]
    dist.all_to_all(outputs, inputs)
    print(np.concatenate(outputs))


def example_mindspore(rank):
    inputs = [np.array([10 * rank + i]) for i in range(4)]
    shapes = [(1,)] * 4
    outputs, _ = comm_func.all_to_all_with_output_shape(shapes, inputs)
    print(np.concatenate(outputs))


def shapes_torch(rank):
    inputs = [np.full(i + 1, rank) for i in range(4)]
    outputs = [np.empty(rank + 1, int) for _ in range(4)]
    returned = dist.all_to_all(outputs, inputs)
    print(returned, *outputs)


def shapes_mindspore(rank):
    inputs = [np.full(i + 1, rank) for i in range(4)]
    shapes = [(rank + 1,)] * 4
    outputs, _ = comm_func.all_to_all_with_output_shape(shapes, inputs)
    print(*outputs)


def matrix_torch(rank):
    # Rank 0 sends one row to each rank, rank 1 two rows, and so on.
    x = np.full(4 * (rank + 1), rank)
    y = np.empty(1 + 2 + 3 + 4, int)
    dist.all_to_all_single(y, x, [1, 2, 3, 4], [rank + 1] * 4)
    print(y)


def matrix_mindspore(rank):
    x = np.full(4 * (rank + 1), rank)
    y = np.empty(1 + 2 + 3 + 4, int)
    matrix = [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4
    comm_func.all_to_all_v_c(y, x, matrix)
    print(y)


def splits_from_input_torch(rank):
    x = np.arange(8) + 10 * rank
    y = np.empty(8, int)
    dist.all_to_all_single(y, x)
    print(y)


def splits_from_input_mindspore(rank):
    x = np.arange(8) + 10 * rank
    y, _ = comm_func.all_to_all_single_with_output_shape([8], x)
    print(y)


def rows_divide_torch(rank):
    try:
        dist.all_to_all_single(np.empty(6), np.ones(6))
    except ValueError as error:
        print(error)


def rows_divide_mindspore(rank):
    try:
        comm_func.all_to_all_single_with_output_shape((6,), np.ones(6))
    except ValueError as error:
        print(error)


def elements_torch(rank):
    x = np.full((4, 2), rank)  # one row of two elements for each rank
    y = np.empty((4, 2), int)
    dist.all_to_all_single(y, x, [1] * 4, [1] * 4)
    print(y.tolist())


def elements_mindspore(rank):
    x = np.full(8, rank)
    exchange = ops.AlltoAllV(block_size=2)
    print(exchange(x, [1] * 4, [1] * 4))
