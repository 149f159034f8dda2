"""What all primitives have: a group, attributes, a backward, and a form that graphs can compile.

A primitive holds no rank and no world: it may be built before `init`, and ranks that are threads
may share it. Its group is looked up at each call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

from unisono.core.groups import Group
from unisono.errors import Unsupported
from unisono.mindspore._groups import HCCL_WORLD_COMM_GROUP, check_group, resolve_group

__all__ = [
    "WORLD",
    "CommunicationPrimitive",
    "CompositePrimitive",
    "NoBackward",
    "OperatorPrimitive",
]

#: The default group of every primitive.
WORLD = HCCL_WORLD_COMM_GROUP


class CommunicationPrimitive:
    """A collective with all its arguments but the tensors; it returns new tensors of their kind."""

    #: Whether this object is an operator of a graph; see `unisono.mindspore.integration.graph`.
    is_operator: ClassVar[bool] = False
    #: Whether a graph may give it tensors that are empty, or have a shape that is not known.
    takes_any_shape: ClassVar[bool] = False
    #: Whether it is the backward of another; see `unisono.core.call.Call.backward`.
    is_backward = False

    def __init__(self, group: str | Group | None) -> None:
        check_group(group)
        self.name = type(self).__name__
        self.group = group
        self.attrs: dict[str, Any] = {}

    def __call__(self, *tensors: Any) -> Any:
        """Run the collective."""
        raise NotImplementedError

    @classmethod
    def plain(cls, *args: Any, **kwargs: Any) -> Self:
        """An object that is no operator of a graph, and so is made in a moment."""
        made = object.__new__(cls)
        made.__init__(*args, **kwargs)  # type: ignore[misc]
        return made

    def add_prim_attr(self, name: str, value: Any) -> Self:
        """Keep an attribute, such as `fusion`, that upstream's compiler would read."""
        self.attrs[name] = value
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # a copied network calls the same collective

    def __repr__(self) -> str:
        return f"{self.name}(group={self.group!r})"

    # ---- what a subclass says for graphs and gradients -------------------------------------------

    def result_shapes(self, *shapes: Sequence[int]) -> Any:
        """The shape of the result for these operands; a list of shapes for several tensors."""
        return shapes[0]

    def result_dtypes(self, *dtypes: Any) -> Any:
        """MindSpore's dtype of the result, or of all its tensors; or a list with one for each."""
        return dtypes[0]

    def backward(self) -> Callable[..., tuple[Any, ...]]:
        """The function `(*operands, result, gradient) -> gradients of the operands`.

        It is compiled in graphs and called outside them. What it calls are primitives, made by
        `like`, and ordinary operators of MindSpore.
        """
        raise NotImplementedError

    def like(self, kind: type[CommunicationPrimitive], *args: Any) -> Any:
        """Another primitive, for graphs if this one is."""
        made = self.maker(kind)(*args)
        made.is_backward = not self.is_backward
        return made

    def maker(self, kind: type[CommunicationPrimitive]) -> Callable[..., Any]:
        """What makes other primitives, for graphs if this one is."""
        if not self.is_operator:
            return kind.plain
        from unisono.mindspore.integration import graph  # needs MindSpore

        made: Callable[..., Any] = graph.operator_class(kind)
        return made

    def size(self) -> int:
        """How many ranks the group has."""
        return int(resolve_group(self.group).size)


class OperatorPrimitive(CommunicationPrimitive):
    """A primitive that programs make, and that is an operator of a graph by itself.

    Where MindSpore is loaded, the object is one of its operators too.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        if "mindspore" not in sys.modules:
            return super().__new__(cls)
        from unisono.mindspore.integration import graph  # needs MindSpore

        operator = graph.operator_class(cls)
        made: Self = operator.__new__(operator)
        return made


class CompositePrimitive(CommunicationPrimitive):
    """A primitive that programs make, and that takes a tuple of tensors, or counts beside them.

    In a graph, MindSpore's compiler reads its `__call__`, which makes operators.
    """

    __ms_class__ = True  # the compiler looks for this name


class NoBackward(CommunicationPrimitive):
    """What is called instead of a backward that does not exist: it raises."""

    def __init__(self, collective: str) -> None:
        super().__init__(None)
        self.collective = collective

    def __call__(self, gradient: Any) -> Any:
        """Refuse to differentiate."""
        raise Unsupported(
            f"{self.collective} has no backward, so no gradient passes through it; keep it out of "
            "what is differentiated (ops.stop_gradient), or move the gradient yourself"
        )

    def backward(self) -> Callable[..., tuple[Any, ...]]:
        """The refusal itself."""
        refuse = self  # in a nested function, the compiler takes `self` for a network
        if not self.is_operator:  # for any number of operands, which a graph could not compile
            return lambda *values: (refuse(values[-1]),)

        def refused(operand: Any, result: Any, gradient: Any) -> tuple[Any, ...]:
            return (refuse(gradient),)

        return refused
