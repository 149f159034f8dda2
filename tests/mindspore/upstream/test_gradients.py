"""Gradients through collectives: those of the sum of all ranks' losses, by finite differences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

from mindspore import Tensor  # noqa: E402  (after the check for MindSpore)

from tests.helpers import worlds  # noqa: E402
from tests.helpers.mindspore_cases import (  # noqa: E402
    CASES,
    MODES,
    SCALARS,
    Loss,
    in_mode,
    operand,
    place_of,
)
from tests.helpers.thorough import essential_rows  # noqa: E402
from unisono.core.groups import Group  # noqa: E402

_STEP = 1e-5

#: Ranks of the world, and the members of a group of it, not in order; None is the world.
GROUPS = essential_rows(1, [(3, None), (2, None), (4, None), (2, [1, 0]), (3, [2, 0]), (4, [3, 0, 2])])

# As upstream, the gradient of a broadcast passes through unchanged on every rank; that of the sum
# of all losses would be their sum at the root, and zero elsewhere.
UNCHANGED = ("Broadcast", "Broadcast of a tuple", "broadcast")


def slopes(
    world: Group, name: str, members: Sequence[int] | None, scalar: bool
) -> dict[str, Any] | None:
    """Gradients in each mode, and this rank's losses a little before and after its operand."""
    place = place_of(world, members)
    if place is None:
        return None
    case = CASES[name](place)
    shape = () if scalar else case.shape
    loss = Loss(case, place) if not scalar else Loss(type(case)(case.call, ()), place)
    x = operand(place, shape)
    found: dict[str, Any] = {"gradients": {}, "losses": [], "operand": x}
    for mode in MODES:
        gradient = in_mode(mode, mindspore.grad(loss))(Tensor(x))
        assert isinstance(gradient, Tensor) and gradient.shape == shape, (mode, gradient)
        found["gradients"][mode] = gradient.asnumpy()
    generator = np.random.default_rng([3, place.position])
    found["directions"] = [generator.normal(size=shape) for _ in range(3)]
    for direction in found["directions"]:
        before, after = (loss(Tensor(x + sign * _STEP * direction)) for sign in (-1, 1))
        found["losses"].append((before.asnumpy(), after.asnumpy()))
    found["weights"] = loss.weights.asnumpy()
    return found


def check_slopes(found: list[dict[str, Any]]) -> None:
    """Gradients agree with the change of the sum of all losses, along some directions."""
    for mode in MODES:
        for number in range(3):
            change = sum(after - before for before, after in (f["losses"][number] for f in found))
            along = sum(
                float((f["gradients"][mode] * f["directions"][number]).sum()) for f in found
            )
            np.testing.assert_allclose(along, change / (2 * _STEP), 1e-6, 1e-7, err_msg=mode)


@pytest.mark.parametrize(("n", "members"), GROUPS)
@pytest.mark.parametrize("name", CASES)
def test_gradient(
    all_worlds: worlds.Worlds, name: str, n: int, members: Sequence[int] | None
) -> None:
    answers = all_worlds.run("shm", n, slopes, name, members, False)
    found = [answer for answer in answers if answer is not None]
    assert len(found) == (n if members is None else len(members))
    if name in UNCHANGED:
        for f in found:
            factor = 3 if name == "Broadcast of a tuple" else 1
            for mode in MODES:
                np.testing.assert_allclose(
                    f["gradients"][mode], factor * f["weights"] * 2 * f["operand"], 1e-12
                )
        return
    check_slopes(found)


@pytest.mark.parametrize("name", SCALARS)
def test_gradient_without_dimensions(all_worlds: worlds.Worlds, name: str) -> None:
    found = all_worlds.run("shm", 3, slopes, name, None, True)
    if name in UNCHANGED:
        for f in found:
            for mode in MODES:
                np.testing.assert_allclose(f["gradients"][mode], f["weights"] * 2 * f["operand"])
        return
    check_slopes(found)
