"""Our communication and comm_func beside MindSpore's own: signatures, errors, real tensors."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

import mindspore.communication as their_communication  # noqa: E402  (after the check above)
from mindspore.communication import comm_func as their_comm_func  # noqa: E402

import unisono  # noqa: E402
from tests.helpers.thorough import essential  # noqa: E402
from unisono.mindspore import communication  # noqa: E402
from unisono.mindspore.communication import comm_func, management  # noqa: E402

# ---- names and signatures ------------------------------------------------------------------------


def test_names():
    assert sorted(communication.__all__) == sorted(their_communication.__all__)
    # Upstream's CommHandle can be imported as well, though its __all__ does not say so.
    assert sorted(comm_func.__all__) == sorted([*their_comm_func.__all__, "CommHandle"])
    for name in their_communication.__all__:
        assert hasattr(management, name)


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(function).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]


FUNCTIONS = [
    pytest.param(getattr(theirs, name), getattr(ours, name), id=name)
    for theirs, ours in ((their_communication, communication), (their_comm_func, comm_func))
    for name in theirs.__all__
    if inspect.isfunction(getattr(theirs, name))
]


def test_functions_are_found():
    assert len(FUNCTIONS) == 12 + 16


@pytest.mark.parametrize(("theirs", "ours"), FUNCTIONS)
def test_signature(theirs, ours):
    assert parameters(ours) == parameters(theirs)


@pytest.mark.parametrize("name", ["P2POp", "CommHandle"])
def test_signature_of_class(name):
    ours, theirs = getattr(comm_func, name), getattr(their_comm_func, name)
    assert parameters(ours.__init__) == parameters(theirs.__init__)


def test_global_comm_before_init():
    for name in ("BACKEND", "WORLD_COMM_GROUP", "INITED", "CHECK_ENVS"):
        expected = getattr(their_communication.GlobalComm, name)
        assert getattr(communication.GlobalComm, name) == expected
    for name in ("HCCL", "NCCL", "MCCL"):
        name = f"{name}_WORLD_COMM_GROUP"
        assert getattr(communication, name) == getattr(their_communication, name)


@pytest.mark.parametrize("name", ["SUM", "MAX", "MIN", "PROD", "AVG"])
def test_operators_are_the_same_strings(name):
    assert getattr(comm_func.ReduceOp, name) == getattr(mindspore.ops.ReduceOp, name)


# ---- bad arguments, before init ------------------------------------------------------------------

X = mindspore.Tensor(np.ones((4, 2), np.float32))
SHAPES = [(4, 2)]
BAD = [
    ("all_reduce", (3,), {}),
    ("all_reduce", (X, 3), {}),
    ("all_reduce", (X, "SUM"), {}),
    ("all_reduce", (X,), {"group": 3}),
    ("all_reduce", (X,), {"async_op": 1}),
    ("all_gather_into_tensor", (3,), {}),
    ("all_gather_into_tensor", (X, 3), {}),
    ("reduce_scatter_tensor", (3,), {}),
    ("reduce", (3, 0), {}),
    ("reduce", (X, "0"), {}),
    ("reduce", (X, 0, 3), {}),
    ("broadcast", (3,), {}),
    ("broadcast", (X, "0"), {}),
    ("scatter_tensor", (3,), {}),
    ("scatter_tensor", (X, "0"), {}),
    ("gather_into_tensor", (3,), {}),
    ("gather_into_tensor", (X, "0"), {}),
    ("barrier", (3,), {}),
    ("send", (3,), {}),
    ("send", (X, "0"), {}),
    ("send", (X, 0, "no"), {}),
    ("recv", (3,), {}),
    ("recv", (X, "0"), {}),
    ("isend", (3,), {}),
    ("isend", (X, "0"), {}),
    ("irecv", (3,), {}),
    ("irecv", (X, "0"), {}),
    ("P2POp", (3, X, 0), {}),
    ("P2POp", ("send", X, 0), {}),
    ("P2POp", (their_comm_func.send, X, 0), {}),
    ("P2POp", ("isend", 3, 0), {}),
    ("P2POp", ("isend", [4, 2], 0), {}),
    ("P2POp", ("isend", X, "0"), {}),
    ("P2POp", ("isend", X, 0, None, 1), {}),
    ("P2POp", ("irecv", (2,), 0), {"recv_dtype": "float32"}),
    ("P2POp", ("irecv", (2,), 0), {"recv_dtype": int}),
    ("batch_isend_irecv", ((),), {}),
    ("batch_isend_irecv", ([],), {}),
    ("all_to_all_with_output_shape", (3, [X]), {}),
    ("all_to_all_with_output_shape", ([3], [X]), {}),
    ("all_to_all_with_output_shape", (SHAPES, 3), {}),
    ("all_to_all_with_output_shape", (SHAPES, [3]), {}),
    ("all_to_all_single_with_output_shape", (3, X), {}),
    ("all_to_all_single_with_output_shape", ((4, 2), 3), {}),
    ("all_to_all_v_c", (3, X, [4]), {}),
    ("all_to_all_v_c", (X, 3, [4]), {}),
    ("all_to_all_v_c", (X, X, (4,)), {}),
    ("all_to_all_v_c", (X, X, [4.0]), {}),
    ("all_to_all_v_c", (X, X, [4], 3), {}),
    ("all_to_all_v_c", (X, X, [4], None, 3), {}),
    ("init", (3,), {}),
    ("init", ("gloo",), {}),
    ("get_rank", (3,), {}),
    ("get_local_rank", (3,), {}),
    ("get_group_size", (3,), {}),
    ("get_local_rank_size", (3,), {}),
    ("get_comm_name", (3,), {}),
    ("get_comm_name", ("no",), {}),
    ("get_process_group_ranks", (3,), {}),
    ("destroy_group", (3,), {}),
    ("destroy_group", ("no",), {}),
    ("create_group", (3, [0]), {}),
    ("create_group", ("g", (0,)), {}),
    ("create_group", ("g", []), {}),
    ("create_group", ("g", [0, 0]), {}),
    ("create_group", ("g", [0], 3), {}),
    ("create_group", ("g", [0]), {}),
    ("get_world_rank_from_group_rank", (3, 0), {}),
    ("get_world_rank_from_group_rank", ("no", 0), {}),
    ("get_group_rank_from_world_rank", (0, 3), {}),
    ("get_group_rank_from_world_rank", ("0", "no"), {}),
]


@pytest.mark.parametrize(
    ("name", "arguments", "keywords"), BAD, ids=[f"{i} {case[0]}" for i, case in enumerate(BAD)]
)
def test_errors_before_init(name, arguments, keywords):
    in_comm_func = name in their_comm_func.__all__
    theirs = their_comm_func if in_comm_func else their_communication
    ours = comm_func if in_comm_func else communication
    with pytest.raises(Exception) as expected:  # noqa: PT011  (theirs decides which)
        getattr(theirs, name)(*arguments, **keywords)
    assert type(expected.value) in (TypeError, ValueError, RuntimeError, NotImplementedError)
    with pytest.raises(expected.type):
        getattr(ours, name)(*arguments, **keywords)


def test_an_accident_upstream_is_a_type_error_here():
    with pytest.raises(AttributeError):
        their_comm_func.batch_isend_irecv([3])
    with pytest.raises(TypeError):
        comm_func.batch_isend_irecv([3])


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("get_rank", "RANK_ID"),
        ("get_local_rank", "LOCAL_RANK"),
        ("get_group_size", "RANK_SIZE"),
        ("get_local_rank_size", "LOCAL_RANK_SIZE"),
    ],
)
def test_answers_before_init(monkeypatch, name, variable):
    ours, theirs = getattr(communication, name), getattr(their_communication, name)
    monkeypatch.delenv(variable, raising=False)
    assert ours() == theirs()
    monkeypatch.setenv(variable, "6")
    assert ours() == theirs() == 6
    assert ours("no") == theirs("no") == 6


# ---- bad arguments where there is a world --------------------------------------------------------


def raises_in_a_world() -> None:
    from mindspore._c_expression import GroupOptions

    communication.create_group("g", [0], GroupOptions())
    for name, arguments, keywords in BAD:
        if name.startswith("P2POp") or (name, arguments) == ("create_group", ("g", [0])):
            continue
        module = comm_func if name in comm_func.__all__ else communication
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            getattr(module, name)(*arguments, **keywords)
    with pytest.raises(NotImplementedError):
        comm_func.P2POp("isend", X, 0, None, 1)


def test_errors_in_a_world():
    unisono.spawn(raises_in_a_world, 1)


# ---- real tensors --------------------------------------------------------------------------------


def given(rank: int, *shape: int, dtype: Any = None) -> Any:
    numbers = (np.arange(np.prod(shape)) + 1 + 100 * rank).reshape(shape)
    return mindspore.Tensor(numbers, dtype or mindspore.float32)


def through_every_function(dtype_name: str) -> dict[str, Any]:
    """What each function gives on the two ranks of the group [2, 1], and that x stays as it was."""
    dtype = getattr(mindspore, dtype_name)
    rank = communication.get_rank()
    if rank == 0:
        return {}
    communication.create_group("turned", [2, 1])
    other = 3 - rank
    x = given(rank, 2, 1, dtype=dtype)
    found: dict[str, Any] = {
        "all_reduce": comm_func.all_reduce(x, group="turned")[0],
        "all_gather_into_tensor": comm_func.all_gather_into_tensor(x, "turned")[0],
        "reduce_scatter_tensor": comm_func.reduce_scatter_tensor(x, "max", "turned")[0],
        "reduce": comm_func.reduce(x, 1, group="turned"),
        "broadcast": comm_func.broadcast(x, 2, "turned"),
        "scatter_tensor": comm_func.scatter_tensor(x, 1, "turned"),
        "gather_into_tensor": comm_func.gather_into_tensor(x, 2, "turned"),
        "all_to_all_with_output_shape": comm_func.all_to_all_with_output_shape(
            [(1, 1), (1,)], [x[0], x[1]], "turned"
        )[0],
        "all_to_all_single_with_output_shape": comm_func.all_to_all_single_with_output_shape(
            (2, 1), x, group="turned"
        )[0],
    }
    output = mindspore.Tensor(np.zeros((2, 1)), dtype)
    assert comm_func.all_to_all_v_c(output, x, [1, 1, 1, 1], "turned") is None
    found["all_to_all_v_c"] = output
    sending = comm_func.isend(x, other, "turned")
    found["recv"] = comm_func.recv(mindspore.Tensor(np.zeros((2, 1)), dtype), other, "turned")
    sending.wait()
    later, receiving = comm_func.irecv(x, other, "turned")
    comm_func.send(x, other, "turned")
    receiving.wait()
    found["irecv"] = later
    found["batch_isend_irecv"] = comm_func.batch_isend_irecv(
        [
            comm_func.P2POp(comm_func.isend, x, other, "turned"),
            comm_func.P2POp("irecv", (1, 2), other, "turned", recv_dtype=dtype),
        ]
    )
    started, handle = comm_func.all_reduce(x, "prod", "turned", async_op=True)
    handle.wait()
    found["async"] = started
    comm_func.barrier("turned")
    communication.destroy_group("turned")
    plain: dict[str, Any] = {"x": flat(x, dtype)}
    for name, result in found.items():
        entries = result if isinstance(result, tuple) else (result,)
        plain[name] = [(tuple(entry.shape), flat(entry, dtype)) for entry in entries]
    return plain


def flat(tensor: Any, dtype: Any) -> list[float]:
    assert isinstance(tensor, mindspore.Tensor) and tensor.dtype == dtype
    return tensor.astype(mindspore.float32).asnumpy().ravel().tolist()


@pytest.mark.parametrize("dtype_name", essential(1, ["float32", "int32", "float16"]))
@pytest.mark.parametrize("engine_name", ["threads", "shm"])
def test_real_tensors(engine_name, dtype_name):
    outside, one, two = unisono.spawn(
        through_every_function, 3, dtype_name, engine=engine_name, timeout=40
    )
    column = (2, 1)
    both = {
        "all_reduce": [(column, [302, 304])],
        "all_gather_into_tensor": [((4, 1), [201, 202, 101, 102])],
        "broadcast": [(column, [201, 202])],
    }
    product = [101 * 201, 102 * 202]
    assert outside == {}
    assert one == both | {
        "x": [101, 102],
        "reduce_scatter_tensor": [((1, 1), [202])],
        "reduce": [(column, [302, 304])],
        "scatter_tensor": [((1, 1), [102])],
        "gather_into_tensor": [(column, [0, 0])],
        "all_to_all_with_output_shape": [((1, 1), [202]), ((1,), [102])],
        "all_to_all_single_with_output_shape": [(column, [202, 102])],
        "all_to_all_v_c": [(column, [202, 102])],
        "recv": [(column, [201, 202])],
        "irecv": [(column, [201, 202])],
        "batch_isend_irecv": [((), [0]), ((1, 2), [201, 202])],
        "async": [(column, rounded(product, dtype_name))],
    }
    assert two == both | {
        "x": [201, 202],
        "reduce_scatter_tensor": [((1, 1), [201])],
        "reduce": [(column, [0, 0])],
        "scatter_tensor": [((1, 1), [101])],
        "gather_into_tensor": [((4, 1), [201, 202, 101, 102])],
        "all_to_all_with_output_shape": [((1, 1), [201]), ((1,), [101])],
        "all_to_all_single_with_output_shape": [(column, [201, 101])],
        "all_to_all_v_c": [(column, [201, 101])],
        "recv": [(column, [101, 102])],
        "irecv": [(column, [101, 102])],
        "batch_isend_irecv": [((), [0]), ((1, 2), [101, 102])],
        "async": [(column, rounded(product, dtype_name))],
    }


def rounded(numbers: list[int], dtype_name: str) -> list[float]:
    return [float(np.array(number).astype(dtype_name)) for number in numbers]


# ---- both in one process, each with a world ------------------------------------------------------


@pytest.mark.thorough
def test_beside_mindspore_in_a_world(tmp_path, port):
    """MindSpore has a world only where msrun has started it, so this is a job of its own."""
    here = Path(__file__).parent
    programs = Path(sys.executable).parent
    # The job runs elsewhere, and has to find this interpreter and this unisono.
    paths = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(Path(unisono.__file__).parents[1]),
    }
    done = subprocess.run(
        [
            programs / "msrun",
            *("--worker_num=1", "--local_worker_num=1", f"--master_port={port}"),
            *("--join=True", f"--log_dir={tmp_path}"),
            here / "beside_mindspore.py",
        ],
        cwd=tmp_path,
        env=os.environ | paths,
        capture_output=True,
        text=True,
        timeout=110,
    )
    result = tmp_path / "result.json"
    logs = "\n".join(log.read_text(errors="replace") for log in tmp_path.glob("*.log"))
    assert result.exists(), done.stdout + done.stderr + logs[-4000:]
    entries = json.loads(result.read_text())
    assert [entry for entry in entries if not entry["agree"]] == []
    assert sum(entry["raised"] for entry in entries) == 36
