"""The kernels give the bits of every other engine, and NVRTC compiles them.

What they compute is tested on the CPU, by the same source: no GPU is needed.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from ml_dtypes import finfo

from tests.helpers import cuda_on_cpu
from tests.helpers.cuda_on_cpu import CudaOnCpu
from tests.helpers.paths import ROOT
from tests.helpers.thorough import essential_rows
from unisono.core.dtypes import DTYPES, DType, ReduceOp, by_name
from unisono.engines.common.reductions import combine
from unisono.engines.cuda.gpu import kernels
from unisono.engines.cuda.gpu.prepared import Move, Permit
from unisono.errors import Unsupported

Array = np.ndarray[Any, Any]

COUNTS = (0, 1, 17, 1009)
SOURCES = (1, 2, 3, 5)
GRID = (3, 32)  # fewer threads than there are blocks of 1009 elements
PAIRS = [(dtype, op) for dtype in DTYPES for op in ReduceOp.ALL if op.name in dtype.operators]
each_pair = pytest.mark.parametrize(("dtype", "op"), PAIRS, ids=repr)


@pytest.fixture(scope="module")
def cpu() -> CudaOnCpu:
    if cuda_on_cpu.COMPILER is None:
        pytest.skip("no g++ to compile the kernels for this CPU")
    return cuda_on_cpu.build(ROOT / "build" / "cuda_on_cpu")


# ---- operands ------------------------------------------------------------------------------------


def part_of(dtype: DType) -> np.dtype[Any]:
    """The type of the parts of a complex number; of all others, their own."""
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "complex" else dtype.numpy


def edges(part: np.dtype[Any]) -> Array:
    """Where arithmetic goes wrong: limits, both zeros, NaN, subnormal numbers, halves of a step."""
    if part.kind == "b":
        return np.array([False, True])
    if part.kind in "iu":
        limits = np.iinfo(part)
        values = [limits.min, limits.min + 1, 0, 1, 2, 3, limits.max - 1, limits.max]
        return np.array(values + [-1, -2] * (part.kind == "i"), dtype=part)
    about = finfo(part)
    step, tiny = float(about.eps), float(about.smallest_subnormal)
    normal, largest = float(about.tiny), float(about.max)
    positive = [0.0, tiny, 3 * tiny, normal - tiny, normal, step / 2, step * 1.5, 1.0, 1.0 + step]
    positive += [1.0 + 2 * step, 3.0, largest / 2, largest * (1 - step), largest, np.inf]
    return np.array([*positive, *(-value for value in positive), np.nan], dtype=part)


def operands_of(dtype: DType, sources: int, count: int) -> list[Array]:
    """Each edge meets each other one in the first two operands; any bits follow."""
    part = part_of(dtype)
    random = np.random.default_rng(seed=[dtype.code, sources])
    length = 2 * count if dtype.kind == "complex" else count
    pairs = random.permutation(list(itertools.product(range(len(edges(part))), repeat=2)))
    columns = [*pairs.T, *(random.permutation(pairs[:, 0]) for _ in range(sources - 2))]
    result = []
    for column in columns[:sources]:
        noise = random.integers(0, 256, length * part.itemsize, dtype=np.uint8)
        noise = noise % 2 if part.kind == "b" else noise
        values = np.concatenate([edges(part)[column], noise.view(part)])
        result.append(values[:length].view(dtype.numpy))
    return result


def at(values: Array, shift: int) -> Array:
    """A copy at an address that is `shift` more than a multiple of 64, between bytes of 0xA5."""
    memory = np.full(values.nbytes + 256, 0xA5, dtype=np.uint8)
    start = -memory.ctypes.data % 64 + 64 + shift
    inside = memory[start : start + values.nbytes].view(values.dtype)
    inside[:] = values
    return inside


def surroundings(inside: Array) -> Array:
    """The bytes before and after a copy that `at` made."""
    memory = inside
    while isinstance(memory.base, np.ndarray):
        memory = memory.base
    start = inside.ctypes.data - memory.ctypes.data
    return np.delete(memory.view(np.uint8), slice(start, start + inside.nbytes))


def bits(values: Array) -> Array:
    """What two results must share: all bits, but any NaN is as good as another."""
    values = np.ascontiguousarray(values)
    if values.dtype.kind == "c":
        values = values.view(f"f{values.dtype.itemsize // 2}")
    plain = values.view(f"u{values.dtype.itemsize}").copy()
    if values.dtype.kind not in "biu":
        plain[np.isnan(values)] = np.iinfo(plain.dtype).max
    return plain


def launch(
    cpu: CudaOnCpu, dtype: DType, op: ReduceOp, to: Array, sources: list[Array], grid=GRID
) -> None:
    name = kernels.reduction(dtype, op)
    addresses = [source.ctypes.data for source in sources]
    cpu.reduce(name, grid, [to.ctypes.data], addresses, to.size, op.factor)


# ---- what they compute ---------------------------------------------------------------------------


@each_pair
@pytest.mark.parametrize("sources", SOURCES)
def test_bits_are_those_of_other_engines(
    cpu: CudaOnCpu, dtype: DType, op: ReduceOp, sources: int
) -> None:
    operands = operands_of(dtype, sources, max(COUNTS))
    expected = bits(combine(op, operands))
    step = part_of(dtype).itemsize
    shifts = {
        "aligned": [0] * (sources + 1),
        "shifted alike": [step] * (sources + 1),
        "shifted": [step * (index % 3) for index in range(sources + 1)],
    }
    for count, (name, shift) in itertools.product(COUNTS, shifts.items()):
        copies = [at(operand[:count], by) for operand, by in zip(operands, shift[1:], strict=True)]
        to = at(np.zeros(count, dtype.numpy), shift[0])
        launch(cpu, dtype, op, to, copies)
        parts = bits(to).size
        np.testing.assert_array_equal(bits(to), expected[:parts], err_msg=f"{count} {name}")
        assert (surroundings(to) == 0xA5).all(), (count, name)
        for copy, operand in zip(copies, operands, strict=True):
            assert copy.tobytes() == operand[:count].tobytes(), (count, name)


@each_pair
@pytest.mark.parametrize("shift", [0, 1], ids=["aligned", "shifted"])
def test_in_place(cpu: CudaOnCpu, dtype: DType, op: ReduceOp, shift: int) -> None:
    operands = operands_of(dtype, 5, 1009)  # more than the kernel reads in one go
    expected = bits(combine(op, operands))
    for place in range(5):
        copies = [at(operand, shift * part_of(dtype).itemsize) for operand in operands]
        launch(cpu, dtype, op, copies[place], copies)
        np.testing.assert_array_equal(bits(copies[place]), expected, err_msg=str(place))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_16_bit_float_is_read_and_rounded(cpu: CudaOnCpu, name: str) -> None:
    dtype = by_name(name)
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    # Exact, halves of the last step of subnormal numbers, thirds of it, beyond the largest.
    for factor in (1.0, 0.5, 0.75, 2.0**-11, 1 / 3, 3.0, 1.0009765625, 1e-5, 70000.0):
        op = ReduceOp.premul_sum(factor)
        to = np.zeros_like(every)
        launch(cpu, dtype, op, to, [every])
        np.testing.assert_array_equal(bits(to), bits(combine(op, [every])), err_msg=str(factor))


@pytest.mark.parametrize("name", [d.name for d in DTYPES if d.kind == "integer"])
def test_an_average_of_the_most_sources_does_not_overflow(cpu: CudaOnCpu, name: str) -> None:
    dtype = by_name(name)
    limits = np.iinfo(dtype.numpy)
    operands = [np.array([limits.min, limits.max], dtype.numpy)] * kernels.MAX_RANKS
    to = np.zeros(2, dtype.numpy)
    launch(cpu, dtype, ReduceOp.AVG, to, operands)
    assert to.tolist() == [limits.min, limits.max]


@pytest.mark.parametrize("name", ["int8", "float16", "float32", "complex128"])
@pytest.mark.parametrize("shift", [0, 1], ids=["alike", "one shifted"])
def test_every_rank_gets_the_result(cpu: CudaOnCpu, name: str, shift: int) -> None:
    dtype = by_name(name)
    operands = operands_of(dtype, 3, 1009)
    expected = bits(combine(ReduceOp.MAX if name == "int8" else ReduceOp.SUM, operands))
    op = ReduceOp.MAX if name == "int8" else ReduceOp.SUM
    copies = [at(operand, 0) for operand in operands[:2]]
    copies.append(at(operands[2], shift * part_of(dtype).itemsize))
    addresses = [copy.ctypes.data for copy in copies]
    cpu.reduce(kernels.reduction(dtype, op), GRID, addresses, addresses, 1009, 1.0)
    for copy in copies:
        np.testing.assert_array_equal(bits(copy), expected)
        assert (surroundings(copy) == 0xA5).all()


@pytest.mark.parametrize("nbytes", [1, 15, 16, 17, 1000, 4096, 4097])
@pytest.mark.parametrize("shifts", [(0, 0), (8, 8), (4, 0), (2, 6), (1, 1), (3, 8)], ids=str)
def test_moves(cpu: CudaOnCpu, nbytes: int, shifts: tuple[int, int]) -> None:
    random = np.random.default_rng(nbytes)
    parts = [random.integers(0, 256, length, np.uint8) for length in (nbytes, 3 * nbytes, 40)]
    sources = [at(part, shifts[0]) for part in parts]
    targets = [at(np.zeros_like(part), shifts[1]) for part in parts]
    pairs = zip(targets, sources, strict=True)
    cpu.move([Move(to.ctypes.data, source.ctypes.data, to.nbytes) for to, source in pairs], GRID)
    for target, source, part in zip(targets, sources, parts, strict=True):
        assert target.tobytes() == source.tobytes() == part.tobytes()
        assert (surroundings(target) == 0xA5).all()


def test_a_launch_that_was_cancelled_writes_nothing_and_says_so(cpu: CudaOnCpu) -> None:
    words = np.zeros(16, np.uint32)
    places = [words[place:].ctypes.data for place in (0, 1, 2, 4, 8, 9)]
    permit = Permit(*places[:4], places[4:])
    source, target = np.ones(1009, np.float32), np.zeros(1009, np.float32)
    move = Move(target.ctypes.data, source.ctypes.data, source.nbytes)
    expression = kernels.reduction(by_name("float32"), ReduceOp.SUM)

    def launch_both(step: int) -> None:
        cpu.move([move], GRID, permit, step)
        cpu.reduce(
            expression, GRID, [move.to], [move.source] * 2, 1009, 1.0, permit=permit, step=step
        )

    words[0] = 1
    launch_both(7)
    launch_both(8)
    assert not target.any() and words[1] == 7  # the first one that was skipped
    assert words[2] == words[8] == words[9] == 8  # it has begun, and is done all the same
    words[:2] = 0
    launch_both(9)
    assert set(target) == {2.0} and words[1] == 0 and words[8] == 9


def test_all_launches_of_a_step_share_the_verdict(cpu: CudaOnCpu) -> None:
    """What is cancelled after the first launch is done to its end: somebody waits for that."""
    words = np.zeros(16, np.uint32)
    permit = Permit(*[words[place:].ctypes.data for place in (0, 1, 2, 4)], [])
    source, target = np.ones(7, np.uint8), np.zeros(14, np.uint8)
    first, second = (Move(target[at:].ctypes.data, source.ctypes.data, 7) for at in (0, 7))
    cpu.move([first], GRID, permit, 3)
    assert words[8] == 0
    words[0] = 1
    cpu.move([second], GRID, permit._replace(done=[words[8:].ctypes.data]), 3)
    assert target.all() and words[1] == 0 and words[8] == 3


def test_the_limits_are_those_of_the_kernels() -> None:
    text = cuda_on_cpu.KERNELS.read_text()
    for name in ("const void* source", "void* target"):
        assert f"{name}[{kernels.MAX_RANKS}];" in text
    for name in ("void* to", "const void* from", "uint64 count"):
        assert f"{name}[{kernels.MAX_MOVES}];" in text


def test_the_grid_that_is_chosen_reaches_every_element(cpu: CudaOnCpu) -> None:
    dtype, count = by_name("float32"), 100_003
    operands = operands_of(dtype, 2, count)
    to = np.zeros(count, dtype.numpy)
    launch(cpu, dtype, ReduceOp.SUM, to, operands, kernels.geometry(count, 4, processors=2))
    np.testing.assert_array_equal(bits(to), bits(combine(ReduceOp.SUM, operands)))


@pytest.mark.parametrize(
    ("count", "itemsize", "blocks"),
    [
        (0, 4, 1),
        (1, 16, 1),
        (1024, 4, 1),
        (1025, 4, 2),
        (4096, 1, 1),
        (257, 16, 2),
        (1 << 40, 2, 40),
    ],
)
def test_geometry(count: int, itemsize: int, blocks: int) -> None:
    assert kernels.geometry(count, itemsize, processors=10) == (blocks, 256)


@pytest.mark.parametrize(
    ("name", "op", "expected"),
    [
        ("float32", ReduceOp.SUM, "reduce<float, float, Sum, Keep, Keep>"),
        ("bool", ReduceOp.SUM, "reduce<uint8, uint8, Or, Keep, Keep>"),
        ("uint64", ReduceOp.AVG, "reduce<uint64, int128, Sum, Keep, Divide>"),
        ("bfloat16", ReduceOp.MAX, "reduce<BFloat, float, Max, Keep, Keep>"),
        (
            "complex64",
            ReduceOp.premul_sum(2),
            "reduce<Complex<float>, Complex<float>, Sum, Scale, Keep>",
        ),
    ],
)
def test_expression(name: str, op: ReduceOp, expected: str) -> None:
    assert kernels.reduction(by_name(name), op) == expected


# ---- NVRTC ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nvrtc() -> Any:
    reason = "kernels are compiled by cuda-core, cuda-bindings and nvidia-cuda-nvrtc"
    pytest.importorskip("cuda.core", reason=reason)
    return pytest.importorskip("cuda.bindings.nvrtc", reason=reason)


FIRST = [("float32", ReduceOp.SUM), ("float16", ReduceOp.AVG), ("int64", ReduceOp.AVG)]
IN_ORDER = sorted(PAIRS, key=lambda pair: (pair[0].name, pair[1]) not in FIRST)


@pytest.mark.usefixtures("nvrtc")
@pytest.mark.parametrize(("dtype", "op"), essential_rows(len(FIRST), IN_ORDER), ids=repr)
@pytest.mark.parametrize("architecture", ["sm_90", "sm_75"])
def test_nvrtc_compiles(dtype: DType, op: ReduceOp, architecture: str) -> None:
    kernel = kernels.compile(kernels.reduction(dtype, op), architecture)
    assert kernel.image.startswith(b"\x7fELF")
    assert kernel.symbol.encode() in kernel.image


@pytest.mark.usefixtures("nvrtc")
def test_nvrtc_compiles_the_moves() -> None:
    for size in (1, 2, 4, 8):
        kernel = kernels.compile(kernels.move(size), "sm_90")
        assert kernel.symbol.encode() in kernel.image


@pytest.mark.usefixtures("nvrtc")
def test_what_nvrtc_does_not_know_is_an_error_of_ours() -> None:
    with pytest.raises(Unsupported, match="move<uint8> cannot be compiled for sm_10: NVRTC"):
        kernels.compile("move<uint8>", "sm_10")


def test_a_factor_needs_no_kernel_of_its_own() -> None:
    half, third = (ReduceOp.premul_sum(1 / number) for number in (2, 3))
    dtype = by_name("float32")
    assert kernels.reduction(dtype, half) == kernels.reduction(dtype, third)


def assembly(nvrtc: Any, expression: str) -> str:
    """The kernel in NVIDIA's portable assembly language."""
    from cuda.core import Program

    program = Program(cuda_on_cpu.KERNELS.read_text(), "c++", kernels._options("sm_75"))
    program.compile("cubin", name_expressions=(expression,))
    _, size = nvrtc.nvrtcGetPTXSize(program.handle)
    text = bytes(size)
    nvrtc.nvrtcGetPTX(program.handle, text)
    return text.decode()


@pytest.mark.parametrize(
    ("name", "op"),
    [("float32", ReduceOp.premul_sum(0.5)), ("complex64", ReduceOp.PRODUCT)],
)
def test_products_are_rounded_before_they_are_added(nvrtc: Any, name: str, op: ReduceOp) -> None:
    text = assembly(nvrtc, kernels.reduction(by_name(name), op))
    assert "mul.rn.f32" in text and "add.rn.f32" in text
    assert "fma" not in text and "mad.f32" not in text and ".ftz" not in text


def test_quotients_are_rounded_as_on_a_cpu(nvrtc: Any) -> None:
    text = assembly(nvrtc, kernels.reduction(by_name("float32"), ReduceOp.AVG))
    assert "div.rn.f32" in text and "div.approx" not in text and ".ftz" not in text


SOME = [kernels.reduction(by_name(name), ReduceOp.SUM) for name in ("bool", "float16", "int64")]


@pytest.mark.parametrize("expression", [*SOME, *map(kernels.move, (1, 2, 4, 8))])
def test_a_thread_reads_16_bytes_at_once_and_keeps_them_in_registers(
    nvrtc: Any, expression: str
) -> None:
    text = assembly(nvrtc, expression)
    for verb in ("ld", "st"):
        assert re.search(rf"{verb}\.global\.(v4\..32|v2\..64)", text), verb
    assert ".local" not in text
