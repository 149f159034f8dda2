"""One rank of one backend of `unisono bench ddp`: takes requests from a socket, trains, answers.

A request is a line of JSON: {"parameters", "sync", "steps", "check"}. The answer is the time of one
step on this rank in seconds. Without "sync" DDP does not exchange gradients (`no_sync`): the step
does all of the work and none of the communication.
"""

from __future__ import annotations

import contextlib
import copy
import math
import sys
import time
from typing import Any

from unisono.tools.bench.rank import serve

__all__ = ["BATCH", "Training", "main"]

#: Samples of each rank in a step.
BATCH = 32
_LAYERS = 4
# Small enough that gradients do not vanish in thousands of steps: denormal numbers are slow.
_RATE = 1e-3
_CHECKED_STEPS = 3


def main(backend: str, address: str) -> None:
    """Join a group of `backend` and serve requests until the bench closes the socket."""
    import torch
    import torch.distributed as dist

    import unisono.torch.backend  # noqa: F401 - torch may be set not to load backends by itself

    torch.set_num_threads(1)
    dist.init_process_group(backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    training: dict[int, Training] = {}

    def answer(request: dict[str, Any]) -> float:
        parameters: int = request["parameters"]
        steps: int = request["steps"]
        if parameters not in training:
            training.clear()
            training[parameters] = Training(parameters, rank, ranks)
        own = training[parameters]
        if request["check"]:
            own.check()
        own.restart()
        for _ in range(min(3, steps)):
            own.step(request["sync"])
        began = time.perf_counter()
        for _ in range(steps):
            own.step(request["sync"])
        return (time.perf_counter() - began) / steps

    serve(address, rank, f"torch {torch.__version__}", answer)
    training.clear()  # DDP holds the group
    dist.destroy_process_group()


class Training:
    """A network of about `parameters` parameters under DDP, and the batches of all ranks."""

    def __init__(self, parameters: int, rank: int, ranks: int) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        self.parameters = parameters
        self._rank = rank
        width = round(math.sqrt(parameters / _LAYERS))
        torch.manual_seed(1)  # the same weights and batches on all ranks of all backends
        layers: list[Any] = []
        for _ in range(_LAYERS):
            layers += [torch.nn.Linear(width, width), torch.nn.ReLU()]
        self._network = torch.nn.Sequential(*layers[:-1])
        self._first = copy.deepcopy(self._network)
        self._batches = [torch.randn(2, BATCH, width) for _ in range(ranks)]
        self._model = DistributedDataParallel(self._network)
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=_RATE)

    def restart(self) -> None:
        """Restore the first weights, because without sync the ranks diverge."""
        self._network.load_state_dict(self._first.state_dict())

    def step(self, sync: bool) -> Any:
        """Run forward, backward (with or without an exchange of gradients) and the optimizer."""
        self._optimizer.zero_grad()
        with contextlib.nullcontext() if sync else self._model.no_sync():
            loss = self._loss(self._model, self._rank)
            loss.backward()
        self._optimizer.step()
        return loss.detach()

    def check(self) -> None:
        """Compare some steps with those of one process that has all batches.

        The time of a wrong result means nothing.
        """
        import torch

        alone = copy.deepcopy(self._first)
        optimizer = torch.optim.SGD(alone.parameters(), lr=_RATE)
        self.restart()
        for step in range(_CHECKED_STEPS):
            optimizer.zero_grad()
            losses = [self._loss(alone, rank) for rank in range(len(self._batches))]
            torch.stack(losses).mean().backward()
            optimizer.step()
            own = losses[self._rank].detach()
            pairs = [("the loss", self.step(sync=True), own)]
            for (name, found), wanted in zip(
                self._network.named_parameters(), alone.parameters(), strict=True
            ):
                pairs.append((f"the gradient of {name}", found.grad, wanted.grad))
            for what, found, wanted in pairs:
                # The two add in different orders, so they round differently.
                if not (found - wanted).abs().max() <= 1e-4 * wanted.abs().max():
                    raise RuntimeError(f"{what} of step {step} is wrong on rank {self._rank}")

    def _loss(self, model: Any, rank: int) -> Any:
        import torch

        given, wanted = self._batches[rank]
        return torch.nn.functional.mse_loss(model(given), wanted)


if __name__ == "__main__":
    main(*sys.argv[1:])
