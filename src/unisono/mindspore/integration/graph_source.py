"""Functions and values that MindSpore's compiler reads. Needs MindSpore."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import mindspore
from mindspore import ops

__all__ = ["filled", "form_of", "made", "paths", "tensors_of", "text_of"]


def made(text: str, **names: Any) -> Callable[..., Any]:
    """The function with this source, which knows these names.

    The compiler asks Python for the source of a function, which must stand in a file that exists;
    where Python finds none, it takes the attribute `source`.
    """
    lines = text.splitlines(keepends=True)
    inner = "".join(f"    {line}" for line in lines)
    name = text.removeprefix("def ").partition("(")[0]
    after_end = "\n" * len(inspect.getsource(inspect.getmodule(made)).splitlines())  # type: ignore[arg-type]
    module = f"{after_end}def make({', '.join(names)}):\n{inner}    return {name}\n"
    found: dict[str, Any] = {"__name__": __name__}
    exec(compile(module, __file__, "exec"), found)
    function: Any = found["make"](**names)
    function.source = (lines, function.__code__.co_firstlineno)
    return function  # type: ignore[no-any-return]


def tensors_of(value: Any) -> Any:
    """All tensors in a value, one after the other."""
    found: Any = ()
    if isinstance(value, (list, tuple)):
        for entry in value:
            found += tensors_of(entry)
    elif isinstance(value, mindspore.Tensor):
        found += (value,)
    return found


# A form says where the tensors are in a value: ("tensor",), ("value", anything else), or
# ("tuple", *forms).


def form_of(value: Any) -> Any:
    """The form of a value, a constant when the compiler reads it."""
    if isinstance(value, mindspore.Tensor):
        return ("tensor",)
    if not isinstance(value, (list, tuple)):
        return ("value", value)
    form: Any = ("tuple",)
    for entry in value:
        form += (form_of(entry),)
    return form


def filled(form: Any, tensors: Any) -> Any:
    """The value of this form that has these tensors."""
    if form[0] == "tensor":
        return tensors[0]
    if form[0] == "value":
        return form[1]
    found: Any = ()
    start = 0
    for part in form[1:]:
        end = start + _count(part)
        found += (filled(part, tensors[start:end]),)
        start = end
    return found


@ops.constexpr  # type: ignore[untyped-decorator]
def _count(form: Any) -> int:
    return len(list(paths(form, "")))


def paths(form: Any, path: str) -> Iterator[str]:
    """The source text of each tensor in a value that is called `path`."""
    kind, *parts = form
    if kind == "tensor":
        yield path
    elif kind == "tuple":
        for index, part in enumerate(parts):
            yield from paths(part, f"{path}[{index}]")


def text_of(form: Any, tensors: Iterator[str], values: dict[str, Any]) -> str:
    """The source text of a value with these tensors; what is no tensor gets a name."""
    kind, *parts = form
    if kind == "tensor":
        return next(tensors)
    if kind == "value":
        name = f"value{len(values)}"
        values[name] = parts[0]
        return name
    return f"({''.join(f'{text_of(part, tensors, values)}, ' for part in parts)})"
