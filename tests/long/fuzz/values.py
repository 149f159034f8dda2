"""Values for the arguments of a fuzz run: right, nearly right and wrong, as Python expressions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st


def _one_of(*texts: str) -> st.SearchStrategy[str]:
    return st.sampled_from(texts)


DTYPES = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip
TORCH_DTYPES = [*DTYPES, "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex32", "uint16"]
ODD_DTYPES = ["object", "U3", "S4", "M8[s]", "m8[ms]", "V5", "f4,i2", ">f4", "longdouble"]

ODD_TENSORS = _one_of(
    "np.zeros(())",
    "np.zeros(0)",
    "np.zeros((0, 3))",
    "np.zeros((4, 0))",
    "np.float32(2)",
    "np.arange(12.0)[::2]",
    "np.arange(8.0)[::-1]",
    "np.arange(8.0).reshape(2, 4).T",
    "np.arange(16.0).reshape(4, 4)[:, 1:3]",
    "np.broadcast_to(np.float32(1), (4, 2))",
    "np.broadcast_to(np.float32(1), (2**50,))",
    "np.lib.stride_tricks.as_strided(np.zeros(8), (4, 4), (8, 8))",
    "np.ones((1,) * 32)",
    "np.asfortranarray(np.zeros((4, 3)))",
    "np.frombuffer(bytearray(33), np.uint8)[1:].view(np.float32)",
    "np.matrix([[1, 2], [3, 4]])",
    "np.ma.masked_array([1.0, 2.0], [0, 1])",
    "np.zeros(4, np.float32).view(np.recarray)",
    "read_only(np.ones(4, np.float32))",
    "bytearray(16)",
    "b'1234'",
    "memoryview(bytearray(8)).cast('d')",
    "array.array('d', [1, 2])",
    "torch.zeros(())",
    "torch.zeros(0)",
    "torch.ones(4, requires_grad=True)",
    "torch.ones(4, requires_grad=True) * 2",
    "torch.nn.Parameter(torch.ones(4))",
    "torch.ones(4).to_sparse()",
    "torch.eye(2).to_sparse_csr()",
    "torch.empty(4, device='meta')",
    "torch.zeros(4, 4).t()",
    "torch.arange(8.0)[::2]",
    "torch.ones(1).expand(4)",
    "torch.ones(1).expand(2**50)",
    "torch.zeros(4, dtype=torch.complex64).conj()",
    "torch.zeros(4, dtype=torch.complex64).conj().imag",
    "torch.quantize_per_tensor(torch.ones(4), 1.0, 0, torch.qint8)",
    "torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])",
    "torch._efficientzerotensor(4)",
    "torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)",
    "Foreign()",
    "BadShape()",
    "LyingArray()",
)

RANKS = st.one_of(
    _one_of("0", "0", "0", "n - 1", "me", "other"),
    _one_of("-1", "n", "2**31", "2**63", "2**64", "-(2**63)", "True", "0.0", "1.5", "float('nan')"),
    _one_of("np.int64(0)", "np.int8(-1)", "np.float32(0)", "np.array(0)", "torch.tensor(0)"),
    _one_of("'0'", "''", "None", "[0]", "Foreign()", "Index(0)", "Index(2**70)", "BadIndex()"),
)
TAGS = st.one_of(_one_of("0", "0", "1", "7"), RANKS)
NUMBERS = st.one_of(_one_of("0", "1", "2", "n"), RANKS)
FLAGS = st.one_of(
    _one_of("False", "False", "True", "True"), _one_of("None", "1", "0", "'yes'", "np.True_", "[]")
)
TENSOR_OPERATORS = ["SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG"]
OPERATORS = st.one_of(
    _one_of(*[f"dist.ReduceOp.{name}" for name in TENSOR_OPERATORS]),
    _one_of("'sum'", "'prod'", "'min'", "'max'", "'avg'"),
    _one_of(
        "dist.ReduceOp.premul_sum(2.0)",
        "torch.distributed.ReduceOp.SUM",
        "torch.distributed.ReduceOp.PREMUL_SUM",
        "torch.distributed.ReduceOp(torch.distributed.ReduceOp.MAX)",
        "dist.ReduceOp",
        "'SUM'",
        "'nonsense'",
        "''",
        "None",
        "0",
        "sum",
        "np.add",
        "['sum']",
        "Foreign()",
    ),
)
P2P_OPERATORS = st.one_of(
    _one_of("'isend'", "'irecv'", "dist.isend", "dist.irecv", "mint.isend", "comm_func.irecv"),
    _one_of("dist.send", "'send'", "None", "0", "print", "Foreign()", "[]"),
)
GROUPS = st.one_of(
    _one_of("None", "None", "None", "'hccl_world_group'", "dist.group.WORLD", "pair", "'pair'"),
    _one_of(
        "first",
        "dead",
        "'dead'",
        "'nowhere'",
        "''",
        "dist.GroupMember.NON_GROUP_MEMBER",
        "dist.group",
        "0",
        "-100",
        "True",
        "1.5",
        "b'pair'",
        "[0]",
        "(0, 1)",
        "np.array([0])",
        "Foreign()",
        "np.str_('pair')",
    ),
)
#: None of them is long: a call waits all of it for a rank that does not come.
TIMEOUTS = st.one_of(
    _one_of("None", "timedelta(seconds=0.2)", "timedelta(milliseconds=50)"),
    _one_of("timedelta(0)", "timedelta(seconds=-1)", "timedelta.min", "timedelta(microseconds=1)"),
    _one_of("0", "0.1", "-1.0", "float('nan')", "-float('inf')", "'1'", "[]", "np.float64(0.1)"),
)
OBJECTS = _one_of(
    "None",
    "1",
    "'text'",
    "{'a': [1, 2]}",
    "np.arange(3)",
    "torch.ones(2)",
    "{1, 2}",
    "b'x' * 9999",
    "print",
    "Exception('x')",
    "Unpicklable()",
    "RefusesPickle()",
    "(lambda: 0)",
    "sys",
    "open",
    "threading.Lock()",
    "(i for i in [])",
    "cyclic()",
    "type('Local', (), {})()",
    "float('nan')",
)
ANYTHING = st.one_of(
    RANKS,
    FLAGS,
    OPERATORS,
    GROUPS,
    TIMEOUTS,
    OBJECTS,
    ODD_TENSORS,
    _one_of(
        "...",
        "NotImplemented",
        "int",
        "{}",
        "set()",
        "''",
        "'\\0'",
        "'\\ud800'",
        "1j",
        "range(3)",
        "[None]",
        "[[]]",
        "Raises()",
        "object()",
        "iter([1])",
        "1e400",
        "10**400",
    ),
)


@dataclass
class Theme:
    """What the tensors of one call have in common, so that many calls are right."""

    library: str
    dtype: str
    rows: int
    width: str


@st.composite
def themes(draw: Any) -> Theme:
    library = draw(_one_of("np", "torch"))
    common = _one_of("float32", "float32", "int64", "float64")
    every = DTYPES if library == "np" else TORCH_DTYPES
    dtype = draw(st.one_of(common, common, st.sampled_from(every)))
    return Theme(library, dtype, draw(st.integers(0, 3)), draw(_one_of("", ", 3", ", 2, 2")))


def _plain(theme: Theme, whole: bool) -> str:
    rows = f"{theme.rows} * n" if whole else str(theme.rows)
    return (
        f"{theme.library}.ones(({rows}{theme.width or ','}), dtype={theme.library}.{theme.dtype})"
    )


@st.composite
def tensors(draw: Any, theme: Theme) -> str:
    kind = draw(st.integers(0, 19))
    if kind < 14:
        return _plain(theme, draw(st.booleans()))
    if kind < 18:
        return draw(ODD_TENSORS)
    if kind == 18:
        return f"np.zeros(4, {draw(st.sampled_from(ODD_DTYPES))!r})"
    return draw(ANYTHING)


@st.composite
def lists(draw: Any, entries: st.SearchStrategy[str]) -> str:
    """A list of them: mostly one for each rank, sometimes of another length or kind."""
    kind = draw(st.integers(0, 11))
    if kind == 0:
        return draw(st.one_of(ANYTHING, entries))
    entry = draw(entries)
    if kind < 7:
        return f"[{entry} for _ in range(n)]"
    if kind == 7:
        return f"tuple({entry} for _ in range(n))"
    if kind == 8:
        return f"[{entry}] * n"  # the very same memory again and again
    parts = draw(st.lists(entries, max_size=3))
    if kind == 9:
        return f"[[{', '.join(parts)}]]"
    return f"[{', '.join([entry, *parts][: draw(st.integers(0, 4))])}]"


@st.composite
def counts(draw: Any, theme: Theme) -> str:
    kind = draw(st.integers(0, 7))
    if kind == 0:
        return draw(ANYTHING)
    if kind == 1:
        return draw(
            _one_of(
                "None",
                "[]",
                "()",
                "np.array([1] * n)",
                "torch.tensor([1] * n)",
                "{0: 1}",
                "'1' * n",
                "[1.5] * n",
                "['1'] * n",
                "[None] * n",
                "[True] * n",
                "[2**63] * n",
                "[-(2**63)] + [2**63] * (n - 1)",
                "[float('nan')] * n",
                "[np.int64(1)] * n",
                "[[1]] * n",
                "range(n)",
                "(i for i in range(n))",
                "[Index(1)] * n",
                "[BadIndex()] * n",
                "[-1] * n",
                "[10**30] * n",
            )
        )
    if kind < 5:
        return f"[{theme.rows}] * n"
    if kind == 5:
        return f"[{theme.rows} * n] + [0] * (n - 1)"
    return repr(draw(st.lists(st.integers(-2, 4), max_size=4)))


@st.composite
def matrices(draw: Any, theme: Theme) -> str:
    row = draw(counts(theme))
    return draw(
        st.one_of(st.just(f"[{row}] * n"), st.just(f"[{theme.rows}] * n * n"), st.just(row))
    )


def shapes(theme: Theme) -> st.SearchStrategy[str]:
    here = f"({theme.rows}{theme.width or ','})"
    return st.one_of(
        _one_of(here, here, "()", "(0,)", "[2, 3]", _plain(theme, True), "(-1,)", "(2**70,)"),
        _one_of("(2**62,)", "(1.5,)", "('3',)", "(None,)", "5", "None", "'34'", "(1,) * 70"),
    )


RANK_LISTS = st.one_of(
    _one_of(
        "list(range(n))",
        "[0]",
        "[me]",
        "None",
        "list(range(n))[::-1]",
        "range(n)",
        "tuple(range(n))",
    ),
    _one_of(
        "[]",
        "[0, 0]",
        "[-1]",
        "[n]",
        "[2**63]",
        "[0.0]",
        "['0']",
        "[None]",
        "[True]",
        "0",
        "'01'",
        "np.arange(n)",
        "[np.int64(0)]",
        "{0}",
        "{0: 1}",
        "torch.arange(n)",
        "[[0]]",
        "(i for i in [0])",
    ),
    ANYTHING,
)
RANK_LISTS_LISTS = st.one_of(
    _one_of(
        "[list(range(n))]", "[[i] for i in range(n)]", "[[]]", "[[0], [0]]", "[[n]]", "[0]", "'0'"
    ),
    _one_of("[['0']]", "[None]", "[[0.0]]", "[(0,)]", "[[-1]]", "[range(n)]", "[{0}]", "{0: [0]}"),
    RANK_LISTS,
)
BACKENDS = st.one_of(
    _one_of("None", "'gloo'", "'shm'", "'unisono'", "'cpu:gloo'", "'hccl'", "'mccl'", "'threads'"),
    _one_of(
        "'nonsense'",
        "''",
        "'cpu:'",
        "':'",
        "'cpu:gloo,cpu:gloo'",
        "'GLOO'",
        "0",
        "b'gloo'",
        "'torch:x'",
    ),
    ANYTHING,
)
NAMES = st.one_of(
    _one_of("'new'", "'pair'", "'world'", "''", "'x' * 300", "'\\0'", "'\\ud800'"), ANYTHING
)
MESSAGES = _one_of(
    "dist.P2POp(dist.isend, np.ones(2), other)",
    "dist.P2POp(dist.irecv, np.ones(2), other)",
    "comm_func.P2POp('isend', np.ones(2), other)",
    "comm_func.P2POp('irecv', (2,), other, recv_dtype=np.float64)",
    "mint.P2POp('isend', np.ones(2), other)",
    "mint.P2POp('irecv', np.ones(2), other)",
    "None",
    "0",
    "Foreign()",
)
URLS = st.one_of(
    _one_of("None", "'env://'", "'file://' + new_file()", "'tcp://127.0.0.1:' + free_port()"),
    _one_of(
        "'tcp://'",
        "'tcp://127.0.0.1'",
        "'tcp://127.0.0.1:99999'",
        "'tcp://[::1'",
        "'file://'",
        "'ftp://x'",
    ),
    _one_of("''", "'tcp://127.0.0.1:x'", "'file:///nowhere/at/all'", "'env://?rank=0'", "0"),
)
TYPES = st.one_of(
    _one_of("np.float32", "np.dtype('int64')", "torch.float32", "np.object_", "'float32'", "float"),
    _one_of("None", "0", "torch.float8_e4m3fn", "np.dtype('f4,i2')", "Foreign()", "np.floating"),
)
FUNCTION_NAMES = st.one_of(
    _one_of("None", "['all_reduce']", "('recv',)", "['barrier', 'irecv']", "['nonsense']", "[0]"),
    _one_of("[[]]", "'all_reduce'", "0", "[None]", "{}"),
)
HOSTS = _one_of("'127.0.0.1'", "'localhost'", "''", "0", "None", "'\\0'", "'256.1.1.1'", "b'x'")
PORTS = st.one_of(_one_of("0", "int(free_port())", "65536", "-1", "99999"), RANKS)
