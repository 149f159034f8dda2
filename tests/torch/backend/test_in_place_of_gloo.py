"""Which groups of a patched torch are ours; what they do is in tests/torch/test_patch.py."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from unisono.torch.backend import in_place_of_gloo  # noqa: E402  (comes after the check for torch)


@pytest.mark.parametrize(
    ("asked", "with_nccl", "without"),
    [
        ("gloo", True, True),
        ("cpu:gloo", True, True),
        ("cpu:gloo,cuda:gloo", True, True),
        ("cpu:gloo,cuda:unisono", True, True),
        ("cpu:gloo,cuda:nccl", True, False),  # torch itself says that it has no nccl
        ("cuda:nccl,cpu:gloo", True, False),
        ("xpu:xccl,cpu:gloo", False, False),
        ("cuda:gloo", False, False),
        ("cpu:mpi,cuda:gloo", False, False),
        ("nccl", False, False),
        ("mpi", False, False),
        ("unisono", False, False),
    ],
)
def test_backends_that_mean_gloo_for_the_cpu(
    asked: str, with_nccl: bool, without: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for is_usable, is_ours in ((True, with_nccl), (False, without)):
        monkeypatch.setattr(in_place_of_gloo, "is_usable", lambda answer=is_usable: answer)
        assert in_place_of_gloo._is_replaced(asked) is is_ours


def test_no_backend_means_that_of_the_machine() -> None:
    is_cpu = not torch.accelerator.is_available()
    assert in_place_of_gloo._is_replaced("undefined") is is_cpu
