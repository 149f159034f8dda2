"""Names that mean the rank, or a question about it, in nearly every program.

A name becomes a symbol: `@rank` for the rank in the world, `@local_rank` for that on the host,
`@rank(group)` for that in a group, `@tp_rank` for another rank that has a name of its own. Names of
flags become questions: `is_main_process` is `@rank == 0`. `#size` is the size of the world.
"""

from __future__ import annotations

import ast
import re

__all__ = ["environment_form", "is_rank_decorator", "name_form", "symbol"]

_RANK = re.compile(r"^_*(?:get_)?(?:(?P<which>\w+?)_)?(?:rank(?:_id)?)$", re.IGNORECASE)
#: Ranks of the whole world, under any of these names.
_WORLD = {"global", "world", "dist", "distributed", "ddp", "process", "worker", "trainer", "my"}
_LOCAL = {"local", "node_local", "ddp_local", "local_process"}
#: The rank of somebody else, which all ranks know, or no rank of a process at all.
_OTHERS = {
    "approximation", "control", "dest", "destination", "dst", "first", "from", "last", "lora",
    "low", "main", "master", "matrix", "matrix_approximation", "max", "min", "new", "next", "old",
    "other", "peer", "prev", "previous", "recv", "root", "send", "source", "src", "start", "target",
    "tensor", "to",
}  # fmt: skip
_MAIN = re.compile(
    r"^_*(?:is_(?:on_)?(?P<where>local_|global_|world_|dist_)?"
    r"(?:main|master|chief|coordinator|rank_?(?:zero|0)|process_zero|first_rank|root_rank)"
    r"(?:_process|_rank|_node|_worker|_proc)?"
    r"|is_(?P<zero>local|global|world)_zero|(?P<also>local_|global_)?(?:main|master)_process)$",
    re.IGNORECASE,
)
_LAST = re.compile(r"^_*is_last_(?:rank|process)$")
_SIZE = re.compile(r"^_*(?:get_)?world_size$", re.IGNORECASE)
_DECORATOR = re.compile(
    r"^_*(?:rank_?(?:zero|0)(?:_only)?|(?:only_)?(?:on_)?(?:local_|global_)?(?:main|master)"
    r"(?:_process|_rank)?(?:_only)?|on_last_process)$"
)
_PLAIN_DECORATORS = {"main", "master", "rank_zero", "rank0"}
_READS = ("environ.get", "getenv")
_VARIABLES = {
    "RANK": "@rank",
    "RANK_ID": "@rank",
    "SLURM_PROCID": "@rank",
    "OMPI_COMM_WORLD_RANK": "@rank",
    "PMI_RANK": "@rank",
    "LOCAL_RANK": "@local_rank",
    "SLURM_LOCALID": "@local_rank",
    "OMPI_COMM_WORLD_LOCAL_RANK": "@local_rank",
}


def symbol(name: str) -> ast.Name:
    """Make the name of a symbol."""
    return ast.Name(name, ast.Load())


def _equals(which: str, value: ast.expr) -> ast.expr:
    return ast.Compare(symbol(which), [ast.Eq()], [value])


def name_form(name: str) -> ast.expr | None:
    """Return what a name of a variable, an attribute or a function means, if it is about the rank.

    >>> [ast.unparse(name_form(name)) for name in ("rank", "get_tp_rank", "is_main_process")]
    ['@rank', '@tp_rank', '@rank == 0']
    """
    if found := _RANK.match(name):
        which = (found["which"] or "").lower()
        if which in _OTHERS or which.rpartition("_")[2] in _OTHERS:
            return None
        if not which or which in _WORLD:
            return symbol("@rank")
        return symbol("@local_rank" if which in _LOCAL else f"@{which}_rank")
    if found := _MAIN.match(name):
        local = "local" in f"{found['where']}{found['also']}{found['zero']}".lower()
        return _equals("@local_rank" if local else "@rank", ast.Constant(0))
    if _SIZE.match(name):
        return symbol("#size")
    if _LAST.match(name):
        return _equals("@rank", ast.BinOp(symbol("#size"), ast.Sub(), ast.Constant(1)))
    return None


def environment_form(node: ast.expr) -> ast.expr | None:
    """Return the symbol for a variable of the environment in which launchers give the rank."""
    key: ast.expr | None = None
    if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("environ"):
        key = node.slice
    elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(_READS):
        key = node.args[0] if node.args else None
    if isinstance(key, ast.Constant) and key.value in _VARIABLES:
        return symbol(_VARIABLES[str(key.value)])
    return None


def is_rank_decorator(name: str) -> bool:
    """Tell whether a decorator's name says that only one rank runs the function."""
    return bool(_DECORATOR.match(name)) and name.strip("_") not in _PLAIN_DECORATORS
