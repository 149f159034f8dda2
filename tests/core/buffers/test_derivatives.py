"""No derivative of torch is lost without a word: by a hot call, the general way, or a result."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402

import unisono.torch.distributed as dist  # noqa: E402
from tests.helpers import worlds  # noqa: E402
from unisono.core import buffers  # noqa: E402
from unisono.errors import Unsupported  # noqa: E402
from unisono.mindspore import ops  # noqa: E402
from unisono.mindspore.communication import comm_func  # noqa: E402
from unisono.mindspore.mint import distributed as mint  # noqa: E402

DUAL = "dual tensor.*would lose its tangent"


@pytest.fixture(scope="module", params=["hot", "general"])
def pool(request):
    """Processes, as torch has one level of forward mode for all threads; calls go either way."""
    every = worlds.Worlds()
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "general":
            patch.setenv("UNISONO_FAST_CALLS", "0")
        yield every
    every.close()


def finished(result, handle):
    handle.wait()
    return result


def gathered(x, **more):
    whole = torch.empty(2 * len(x))
    return finished(whole, dist.all_gather_single(whole, x, **more) or comm_func.CommHandle())


#: Calls of every kind that write in place; each returns what it has written.
IN_PLACE = {
    "all_reduce": lambda x: dist.all_reduce(x) or x,
    "async": lambda x: finished(x, dist.all_reduce(x, async_op=True)),
    "broadcast": lambda x: dist.broadcast(x, 0) or x,
    "gather": gathered,
    "async gather": lambda x: gathered(x, async_op=True),
    "list": lambda x: dist.all_gather([torch.empty(2) for _ in range(2)], x) or x,
    "coalesced": lambda x: dist.all_reduce_coalesced([torch.ones(2), x]) or x,
    "mint": lambda x: mint.all_reduce(x) or x,
}
#: Calls that return something new.
RETURNING = {
    "new": lambda x: comm_func.all_reduce(x)[0],
    "async new": lambda x: finished(*comm_func.all_reduce(x, async_op=True)),
    "new gather": lambda x: comm_func.all_gather_into_tensor(x)[0],
    "new scatter": lambda x: comm_func.reduce_scatter_tensor(x)[0],
    "new broadcast": lambda x: comm_func.broadcast(x, 1),
    "new reduce": lambda x: comm_func.reduce(x, 1),
    "new list": lambda x: comm_func.all_to_all_with_output_shape([(1,), (1,)], [x[:1], x[1:]])[0][
        0
    ],
    "primitive": lambda x: ops.AllReduce()(x),
    "blocks": lambda x: ops.AlltoAll(2, 0, 0)(x),
}
ALL = {**IN_PLACE, **RETURNING}


# ---- forward mode --------------------------------------------------------------------------------


def with_tangent(world, name, x=None):
    with forward_ad.dual_level():
        given = torch.ones(2) if x is None else x
        dual = forward_ad.make_dual(given, torch.ones_like(given))
        with pytest.raises(Unsupported, match=DUAL):
            ALL[name](dual)
        plain = ALL[name](dual.detach())
        assert forward_ad.unpack_dual(plain).tangent is None
    return plain.tolist()


@pytest.mark.parametrize("name", ALL)
def test_dual_tensors_are_refused(pool, name):
    assert len(pool.run("shm", 2, with_tangent, name)) == 2


def strided_and_received(world):
    with_tangent(world, "all_reduce", torch.ones(2, 3)[:, 0])
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(2), torch.ones(2))
        with pytest.raises(Unsupported, match=DUAL):
            dist.recv(dual, 1 - world.rank)
        with pytest.raises(Unsupported, match=DUAL):
            dist.send(dual, 1 - world.rank)
    after = torch.ones(2)  # hot calls are hot again
    dist.all_reduce(after)
    return after.tolist()


def test_strided_tensors_and_messages(pool):
    assert pool.run("shm", 2, strided_and_received) == [[2.0, 2.0]] * 2


def within_a_function(world):
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            assert not buffers.has_tangent(x)
            return x * 2

        @staticmethod
        def jvp(ctx, tangent):
            return tangent * 2

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.ones(2), torch.ones(2))
        assert buffers.has_tangent(dual)
        assert not buffers.has_tangent(torch.ones(2))
        Function.apply(dual)
    return buffers.has_tangent(dual)


def test_a_function_of_autograd_may_communicate_what_has_a_tangent(pool):
    assert pool.run("shm", 1, within_a_function) == [False]


# ---- backward ------------------------------------------------------------------------------------


def through(world, name):
    """A backward through a result of which the loss depends, beside another way."""
    x = torch.ones(2, requires_grad=True)
    result = RETURNING[name](x * 1)
    result.div_(2)  # it is a tensor as any other
    with pytest.raises(Unsupported, match=r"no gradient of torch.*test_derivatives\.py"):
        (result.sum() + x.sum()).backward()
    with torch.no_grad():
        assert not RETURNING[name](x).requires_grad
    return RETURNING[name](x.detach()).requires_grad


@pytest.mark.parametrize("name", RETURNING)
def test_a_backward_through_a_new_tensor_raises(pool, name):
    assert pool.run("shm", 2, through, name) == [False, False]


def sent(world):
    if world.rank == 1:
        return ops.Receive(0, 0, [2], torch.float32)().tolist()
    result = ops.Send(0, 1)(torch.ones(2, requires_grad=True))
    with pytest.raises(Unsupported, match="no gradient of torch"):
        result.sum().backward()
    return result.tolist()


def test_a_backward_through_what_was_sent_raises(pool):
    assert pool.run("shm", 2, sent) == [[1.0, 1.0]] * 2


def other_results(world):
    pattern = torch.ones(2, requires_grad=True)
    entries = [torch.ones(2), pattern]  # the second one alone has a gradient
    exchanged, handle = comm_func.all_to_all_with_output_shape([(2,), (2,)], entries, async_op=True)
    handle.wait()
    assert all(part.requires_grad for part in exchanged)
    whole = comm_func.all_reduce(torch.ones(2, dtype=torch.int64))[0]
    if world.rank == 0:
        comm_func.send(torch.ones(2), 1)
        return whole.tolist()
    # Only the shape of the pattern is read.
    assert not comm_func.recv(pattern, 0).requires_grad
    return whole.tolist()


def test_lists_and_patterns(pool):
    assert pool.run("shm", 2, other_results) == [[2, 2]] * 2


# ---- tensors without memory ----------------------------------------------------------------------

TRANSFORMS = {
    "grad": lambda f, x: torch.func.grad(lambda y: f(y).sum())(x),
    "vmap": lambda f, x: torch.func.vmap(f)(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
    "functionalize": lambda f, x: torch.func.functionalize(f)(x),
}


def transformed(world, name):
    for verb in ("all_reduce", "async", "mint", "new", "primitive"):
        with pytest.raises(Unsupported, match=r"make (the call outside|a real one)"):
            TRANSFORMS[name](ALL[verb], torch.ones(2, 3))
    return True


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own in jvp
@pytest.mark.parametrize("name", TRANSFORMS)
def test_tensors_of_torch_func_are_refused(pool, name):
    assert pool.run("shm", 1, transformed, name) == [True]
