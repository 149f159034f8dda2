"""Why engine `cuda` cannot be tested on a GPU of this machine; prints nothing if it can.

python -m tests.helpers.real_gpu
"""

from __future__ import annotations

from importlib.util import find_spec

from unisono.engines.cuda.gpu import driver
from unisono.errors import UnisonoError


def why_not() -> str:
    """Say what is missing, if something is."""
    if reason := driver.missing():
        return reason
    try:
        if not driver.visible_gpus():
            return "this process sees no GPU"
    except UnisonoError as error:
        return str(error)
    if find_spec("torch") is None:
        return "torch is not installed, which the tests make tensors with"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} cannot use the GPU; install a build for CUDA"
    return ""


if __name__ == "__main__":
    print(why_not())
