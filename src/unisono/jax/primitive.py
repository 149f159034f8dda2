"""The JAX primitive behind every collective: how it is traced, run, compiled and batched."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from unisono.errors import UnisonoError, Unsupported
from unisono.jax import call_site, failures
from unisono.jax.collective import Collective
from unisono.jax.internals import EFFECT

__all__ = ["bind", "primitive"]

primitive = Primitive("unisono_collective")


def bind(collective: Collective, *operands: Any) -> Any:
    """Make this call part of the program that JAX traces, or run it at once if there is none."""
    results = primitive.bind(*operands, collective=collective)
    return results[0] if results else None


def _result_types(*operands: Any, collective: Collective) -> tuple[list[Any], set[Any]]:
    results = []
    if collective.has_result:
        shape = collective.result_shape(operands[0].shape if operands else ())
        dtype = operands[0].dtype if operands else collective.dtype
        results.append(jax.core.ShapedArray(shape, dtype))
    return results, {EFFECT}


def _run_now(*operands: Any, collective: Collective) -> list[Any]:
    """Outside `jit`: after the programs that are still running, which may have collectives too."""
    failures.wait_for_programs()
    arrays = [np.asarray(operand) for operand in operands]
    results = call_site.run_at(collective.site, collective.run, arrays)
    where = getattr(operands[0], "sharding", None) if operands else None
    return [jax.device_put(result, where) for result in results]


def _compile(context: Any, *operands: Any, collective: Collective) -> Any:
    """A call back to Python, between the token of the collective before and that of the next."""
    if collective.threaded:
        raise Unsupported(
            f"{collective.verb} in a compiled program (jit, scan, ...) needs ranks that are "
            "processes: threads share one JAX, and their programs would wait for each other. Use "
            "engine 'shm', or jax.disable_jit()"
        )

    def run(*arrays: Any) -> Any:
        # Plain NumPy on both sides: work given to JAX in here may never get a thread.
        try:
            return call_site.run_at(collective.site, collective.run, arrays)
        except UnisonoError as error:
            failures.note(error)
            raise

    results, token, _ = mlir.emit_python_callback(
        context,
        run,
        context.tokens_in.get(EFFECT),
        list(operands),
        context.avals_in,
        context.avals_out,
        has_side_effect=True,
    )
    context.set_tokens_out(mlir.TokenSet({EFFECT: token}))
    return results


def _batch(operands: Any, axes: Any, *, collective: Collective) -> Any:
    """Under `vmap`: one collective for the whole batch."""
    (operand,), (axis,) = operands, axes
    if collective.verb == "send":
        raise Unsupported("send under vmap: the receiver cannot know the batch; send it as a whole")
    if collective.rows is not None and axis == 0:  # the first axis is that of the ranks' rows
        operand, axis = jax.numpy.moveaxis(operand, 0, 1), 1
    return [bind(collective, operand)], [axis]


def _define() -> None:
    primitive.multiple_results = True
    primitive.def_impl(_run_now)
    primitive.def_effectful_abstract_eval(_result_types)
    mlir.register_lowering(primitive, _compile)
    batching.primitive_batchers[primitive] = _batch


_define()
