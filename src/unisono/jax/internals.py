"""The parts of JAX that have no public name: all that this face uses of them is here.

A collective has an ordered effect. So JAX keeps collectives in program order, also independent
ones, also from one compiled program to the next, and never removes one whose result is not used.
"""

from __future__ import annotations

from jax._src import dispatch as _dispatch
from jax._src import effects as _effects

__all__ = ["EFFECT", "CollectiveEffect", "forget_tokens"]


class CollectiveEffect(_effects.Effect):  # type: ignore[misc]
    """What JAX knows of a collective beyond its result: that it happens, and in which order."""

    def __str__(self) -> str:
        return "unisono collective"


EFFECT = CollectiveEffect()

for _allowed in (
    _effects.lowerable_effects,
    _effects.ordered_effects,
    _effects.control_flow_allowed_effects,
    _effects.custom_derivatives_allowed_effects,
    _effects.remat_allowed_effects,
):
    _allowed.add_type(CollectiveEffect)


def forget_tokens() -> None:
    """Let programs of this thread start anew after one has failed.

    JAX orders programs by a token that each passes to the next. One that failed while its caller
    did not wait leaves its error in the token, and every later program would end with that.
    """
    _dispatch.runtime_tokens.clear()
