"""Train a small network on several ranks, in PyTorch's dialect: `unisono run -n 2 <this file>`.

Every rank has the same weights and its own share of the data. Each step it computes gradients from
its share, sums them over all ranks, and takes the same step as all other ranks. The same program in
MindSpore's dialect is train_mindspore.py; both print the same, to the last bit.
"""

from __future__ import annotations

import zlib

import numpy as np

import unisono.torch.distributed as dist

STEPS = 20
RATE = 4.0
BATCH = 64

dist.init_process_group()
rank = dist.get_rank()
ranks = dist.get_world_size()

# The same seed everywhere gives the same data and the same weights everywhere.
random = np.random.default_rng(1)
points = random.uniform(-1.0, 1.0, (BATCH, 2))
wanted = (points[:, :1] * points[:, 1:] > 0).astype(np.float64)  # are both signs the same?
hidden_weights = 2.0 * random.normal(size=(2, 16))
hidden_bias = np.zeros(16)
output_weights = random.normal(size=(16, 1)) / 4
output_bias = np.zeros(1)
weights = [hidden_weights, hidden_bias, output_weights, output_bias]

points = points[rank::ranks]  # from here on only this rank's share
wanted = wanted[rank::ranks]

for step in range(STEPS):
    # Forward: one hidden layer with tanh, one output between 0 and 1.
    hidden = np.tanh(points @ hidden_weights + hidden_bias)
    guess = 1.0 / (1.0 + np.exp(-(hidden @ output_weights + output_bias)))

    # Backward, by hand, for the mean squared error over the whole batch.
    error = guess - wanted
    loss = np.array([np.sum(error**2) / BATCH])
    at_output = 2.0 * error * guess * (1.0 - guess) / BATCH
    at_hidden = (at_output @ output_weights.T) * (1.0 - hidden**2)
    gradients = [
        points.T @ at_hidden,
        at_hidden.sum(axis=0),
        hidden.T @ at_output,
        at_output.sum(axis=0),
    ]

    # Communication: in this dialect the sum replaces the input of each rank.
    dist.all_reduce(loss)
    for gradient in gradients:
        dist.all_reduce(gradient)

    for weight, gradient in zip(weights, gradients, strict=True):
        weight -= RATE * gradient
    if rank == 0:
        print(f"step {step:2} loss {loss[0]:.17g}")

checksum = zlib.crc32(b"".join(weight.tobytes() for weight in weights))
print(f"weights {checksum:08x}")
dist.destroy_process_group()
