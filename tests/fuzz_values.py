"""Calls of every function of both faces, drawn by hypothesis: right, nearly right and wrong.

A call is text: values are Python expressions, which each rank evaluates for itself (fuzz_rank.py).
So both ranks of a world get the same call, and a report shows what can be pasted into a shell.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

__all__ = ["MODULES", "Call", "calls", "functions", "pairs"]

#: The modules of both faces, by the short names that expressions use.
MODULES = {
    "dist": "unisono.torch.distributed",
    "comm": "unisono.mindspore.communication",
    "management": "unisono.mindspore.communication.management",
    "comm_func": "unisono.mindspore.communication.comm_func",
    "ops": "unisono.mindspore.ops",
    "communication": "unisono.mindspore.ops.communication",
    "mint": "unisono.mindspore.mint.distributed",
}


@dataclass
class Call:
    """One call as text; `then` holds the arguments of a call of what came back."""

    path: str
    arguments: list[str] = field(default_factory=list)
    then: list[str] | None = None

    def __str__(self) -> str:
        text = f"{self.path}({', '.join(self.arguments)})"
        return text if self.then is None else f"{text}({', '.join(self.then)})"


def functions() -> dict[str, Callable[..., Any]]:
    """Every function, and every class that faces define themselves, by its path."""
    found = {}
    for short, name in MODULES.items():
        module = importlib.import_module(name)
        for public in module.__all__:
            thing = getattr(module, public)
            own = getattr(thing, "__module__", "").startswith(
                ("unisono.torch", "unisono.mindspore")
            )
            if callable(thing) and (own or inspect.isfunction(thing)):
                found[f"{short}.{public}"] = thing
    return found


# ---- values: each a strategy of expressions ------------------------------------------------------


def _one_of(*texts: str) -> st.SearchStrategy[str]:
    return st.sampled_from(texts)


DTYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64 complex128".split()
TORCH_DTYPES = [*DTYPES, "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex32", "uint16"]
ODD_DTYPES = "object|U3|S4|M8[s]|m8[ms]|V5|f4,i2|>f4|longdouble|clongdouble".split("|")

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
TENSOR_OPERATORS = "SUM PRODUCT MIN MAX BAND BOR BXOR AVG".split()
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
#: None of them is long: whoever waits for a rank that does not come waits as long as it is told.
TIMEOUTS = st.one_of(
    _one_of("None", "timedelta(seconds=0.2)", "timedelta(milliseconds=50)"),
    _one_of("timedelta(0)", "timedelta(seconds=-1)", "timedelta.min", "timedelta(microseconds=1)"),
    _one_of("0", "0.1", "-1.0", "float('nan')", "-float('inf')", "'1'", "[]", "np.float64(0.1)"),
)
OBJECTS = _one_of(
    "None", "1", "'text'", "{'a': [1, 2]}", "np.arange(3)", "torch.ones(2)", "{1, 2}", "b'x' * 9999",
    "print", "Exception('x')", "Unpicklable()", "RefusesPickle()", "(lambda: 0)", "sys", "open",
    "threading.Lock()", "(i for i in [])", "cyclic()", "type('Local', (), {})()", "float('nan')",
)  # fmt: skip
ANYTHING = st.one_of(
    RANKS, FLAGS, OPERATORS, GROUPS, TIMEOUTS, OBJECTS, ODD_TENSORS,
    _one_of("...", "NotImplemented", "int", "{}", "set()", "''", "'\\0'", "'\\ud800'", "1j", "range(3)",
            "[None]", "[[]]", "Raises()", "object()", "iter([1])", "1e400", "10**400"),
)  # fmt: skip


@dataclass
class _Theme:
    """What the tensors of one call have in common, so that many calls are right."""

    library: str
    dtype: str
    rows: int
    width: str


@st.composite
def _themes(draw: Any) -> _Theme:
    library = draw(_one_of("np", "torch"))
    common = _one_of("float32", "float32", "int64", "float64")
    every = DTYPES if library == "np" else TORCH_DTYPES
    dtype = draw(st.one_of(common, common, st.sampled_from(every)))
    return _Theme(library, dtype, draw(st.integers(0, 3)), draw(_one_of("", ", 3", ", 2, 2")))


def _plain(theme: _Theme, whole: bool) -> str:
    rows = f"{theme.rows} * n" if whole else str(theme.rows)
    return f"{theme.library}.ones(({rows}{theme.width or ','}), dtype={theme.library}.{theme.dtype})"


@st.composite
def _tensors(draw: Any, theme: _Theme) -> str:
    kind = draw(st.integers(0, 19))
    if kind < 14:
        return _plain(theme, draw(st.booleans()))
    if kind < 18:
        return draw(ODD_TENSORS)
    if kind == 18:
        return f"np.zeros(4, {draw(st.sampled_from(ODD_DTYPES))!r})"
    return draw(ANYTHING)


@st.composite
def _lists(draw: Any, entries: st.SearchStrategy[str], right: int | None = None) -> str:
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
def _counts(draw: Any, theme: _Theme) -> str:
    kind = draw(st.integers(0, 7))
    if kind == 0:
        return draw(ANYTHING)
    if kind == 1:
        return draw(
            _one_of("None", "[]", "()", "np.array([1] * n)", "torch.tensor([1] * n)", "{0: 1}",
                    "'1' * n", "[1.5] * n", "['1'] * n", "[None] * n", "[True] * n",
                    "[2**63] * n", "[-(2**63)] + [2**63] * (n - 1)", "[float('nan')] * n",
                    "[np.int64(1)] * n", "[[1]] * n", "range(n)", "(i for i in range(n))",
                    "[Index(1)] * n", "[BadIndex()] * n", "[-1] * n", "[10**30] * n")
        )  # fmt: skip
    if kind < 5:
        return f"[{theme.rows}] * n"
    if kind == 5:
        return f"[{theme.rows} * n] + [0] * (n - 1)"
    return repr(draw(st.lists(st.integers(-2, 4), max_size=4)))


@st.composite
def _matrices(draw: Any, theme: _Theme) -> str:
    row = draw(_counts(theme))
    return draw(st.one_of(st.just(f"[{row}] * n"), st.just(f"[{theme.rows}] * n * n"), st.just(row)))


def _shapes(theme: _Theme) -> st.SearchStrategy[str]:
    here = f"({theme.rows}{theme.width or ','})"
    return st.one_of(
        _one_of(here, here, "()", "(0,)", "[2, 3]", _plain(theme, True), "(-1,)", "(2**70,)"),
        _one_of("(2**62,)", "(1.5,)", "('3',)", "(None,)", "5", "None", "'34'", "(1,) * 70"),
    )


RANK_LISTS = st.one_of(
    _one_of("list(range(n))", "[0]", "[me]", "None", "list(range(n))[::-1]", "range(n)", "tuple(range(n))"),
    _one_of("[]", "[0, 0]", "[-1]", "[n]", "[2**63]", "[0.0]", "['0']", "[None]", "[True]", "0", "'01'",
            "np.arange(n)", "[np.int64(0)]", "{0}", "{0: 1}", "torch.arange(n)", "[[0]]", "(i for i in [0])"),
    ANYTHING,
)  # fmt: skip
RANK_LISTS_LISTS = st.one_of(
    _one_of("[list(range(n))]", "[[i] for i in range(n)]", "[[]]", "[[0], [0]]", "[[n]]", "[0]", "'0'"),
    _one_of("[['0']]", "[None]", "[[0.0]]", "[(0,)]", "[[-1]]", "[range(n)]", "[{0}]", "{0: [0]}"),
    RANK_LISTS,
)  # fmt: skip
BACKENDS = st.one_of(
    _one_of("None", "'gloo'", "'shm'", "'unisono'", "'cpu:gloo'", "'hccl'", "'mccl'", "'threads'"),
    _one_of("'nonsense'", "''", "'cpu:'", "':'", "'cpu:gloo,cpu:gloo'", "'GLOO'", "0", "b'gloo'", "'torch:x'"),
    ANYTHING,
)  # fmt: skip
NAMES = st.one_of(_one_of("'new'", "'pair'", "'world'", "''", "'x' * 300", "'\\0'", "'\\ud800'"), ANYTHING)
MESSAGES = _one_of(
    "dist.P2POp(dist.isend, np.ones(2), other)" , "dist.P2POp(dist.irecv, np.ones(2), other)",
    "comm_func.P2POp('isend', np.ones(2), other)", "comm_func.P2POp('irecv', (2,), other, recv_dtype=np.float64)",
    "mint.P2POp('isend', np.ones(2), other)", "mint.P2POp('irecv', np.ones(2), other)",
    "None", "0", "Foreign()",
)  # fmt: skip
URLS = st.one_of(
    _one_of("None", "'env://'", "'file://' + new_file()", "'tcp://127.0.0.1:' + free_port()"),
    _one_of("'tcp://'", "'tcp://127.0.0.1'", "'tcp://127.0.0.1:99999'", "'tcp://[::1'", "'file://'", "'ftp://x'"),
    _one_of("''", "'tcp://127.0.0.1:x'", "'file:///nowhere/at/all'", "'env://?rank=0'", "0"),
)  # fmt: skip
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

#: By the name of the parameter: the first pattern that fits.
_BY_NAME: list[tuple[str, Callable[[_Theme], st.SearchStrategy[str]]]] = [
    (r"output_tensor_lists", lambda theme: _lists(_lists(_tensors(theme)))),
    (r"p2p_op_list", lambda theme: _lists(MESSAGES)),
    (r"ranks_per_subgroup_list|split_ranks", lambda theme: RANK_LISTS_LISTS),
    (r"output_shape_list|receive_shapes", lambda theme: _lists(_shapes(theme))),
    (r"receive_dtypes", lambda theme: _lists(TYPES)),
    (r"op_types", lambda theme: _lists(P2P_OPERATORS)),
    (r"remote_ranks", lambda theme: _lists(RANKS)),
    (r"func_list", lambda theme: FUNCTION_NAMES),
    (r".*object.*_list", lambda theme: _lists(OBJECTS)),
    (r"obj", lambda theme: OBJECTS),
    (r".*split_sizes|.*numel_list", _counts),
    (r"send_count_matrix", _matrices),
    (r".*shape", _shapes),
    (r".*_list|tensors", lambda theme: _lists(_tensors(theme))),
    (r"ranks|_ranks|rank_ids|device_ids", lambda theme: RANK_LISTS),
    (r"(.*_)?(tensor|input|output)|input_x", _tensors),
    (r"op", lambda theme: st.one_of(OPERATORS, OPERATORS, P2P_OPERATORS)),
    (r"group(_back)?|parent_pg", lambda theme: GROUPS),
    (r"timeout", lambda theme: TIMEOUTS),
    (r".*tag", lambda theme: TAGS),
    (r".*rank(_id)?|src|dst|group_(src|dst)|(group_)?peer", lambda theme: RANKS),
    (r".*(size|count|dim)", lambda theme: NUMBERS),
    (r"backend(_name)?", lambda theme: BACKENDS),
    (r"init_method", lambda theme: URLS),
    (r"host_name", lambda theme: HOSTS),
    (r"port|master_listen_fd", lambda theme: PORTS),
    (r"dtype|recv_dtype", lambda theme: TYPES),
    (r"(async|is|use|wait|sort|multi)_.*", lambda theme: FLAGS),
    (r"group_(name|desc)", lambda theme: NAMES),
]


def _value(name: str, theme: _Theme) -> st.SearchStrategy[str]:
    for pattern, strategy in _BY_NAME:
        if re.fullmatch(pattern, name):
            return strategy(theme)
    return ANYTHING


# ---- calls ---------------------------------------------------------------------------------------

_FUNCTIONS = functions()


@st.composite
def _arguments(draw: Any, parameters: list[inspect.Parameter], theme: _Theme) -> list[str]:
    """Arguments by position and by name; sometimes one is missing, doubled or too many."""
    given, named = [], False
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        optional = parameter.default is not parameter.empty
        must = parameter.name == "timeout" and optional and parameter.default is not None
        if not must and draw(st.integers(0, 9)) < (5 if optional else 0):
            named = True
            continue
        if not optional and draw(st.integers(0, 49)) == 0:
            continue
        wild = draw(st.integers(0, 14)) == 0
        text = draw(ANYTHING if wild and not must else _value(parameter.name, theme))
        named = named or parameter.kind is parameter.KEYWORD_ONLY or draw(st.integers(0, 4)) == 0
        given.append(f"{parameter.name}={text}" if named else text)
    if draw(st.integers(0, 39)) == 0:
        given.append(f"surplus={draw(ANYTHING)}")
    return given


@st.composite
def calls(draw: Any, path: str | None = None, theme: _Theme | None = None) -> Call:
    """Any call of any function."""
    theme = theme or draw(_themes())
    path = path or draw(st.sampled_from(sorted(_FUNCTIONS)))
    thing = _FUNCTIONS[path]
    call = Call(path, draw(_arguments(list(inspect.signature(thing).parameters.values()), theme)))
    if isinstance(thing, type) and "__call__" in vars(thing):
        then = list(inspect.signature(vars(thing)["__call__"]).parameters.values())[1:]
        call.then = draw(_arguments(then, theme))
    return call


@st.composite
def pairs(draw: Any) -> tuple[Call, Call]:
    """Two calls for two ranks: often of one function, or with tensors that would fit."""
    theme = draw(_themes())
    first = draw(calls(theme=theme))
    path = first.path if draw(st.booleans()) else None
    return first, draw(calls(path, theme if draw(st.booleans()) else None))
