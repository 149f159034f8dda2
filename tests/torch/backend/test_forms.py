"""All call forms that torch's own documentation gives the methods of a group, compared with Gloo.

The forms are read from torch's docstrings, so that a torch with a new one fails here. Each is made
with the arguments that are needed, with all in order, and with all by name.
"""

from __future__ import annotations

import functools
import re
from datetime import timedelta
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as native_c10d

from tests.helpers.backend_cases import join, same
from unisono.errors import ArgumentTypeError

RANKS = 2
WIDTH = 3  # elements of a rank's part
ROOT = 1
STYLES = ("needed", "all", "named")


# ---- the forms, as torch documents them ----------------------------------------------------------


class Parameter(NamedTuple):
    name: str
    kind: str
    needed: bool


class Form(NamedTuple):
    method: str
    parameters: tuple[Parameter, ...]

    def __str__(self) -> str:
        return f"{self.method}({', '.join(each.name for each in self.parameters)})"


SIGNATURE = re.compile(r"^\s*(?:\d+\. )?(\w+)\(self: [\w.]+(?:, (.*))?\) -> c10d::Work$", re.M)


def forms_of(kind: type) -> list[Form]:
    found = []
    for name in dir(kind):
        for method, text in SIGNATURE.findall(getattr(kind, name).__doc__ or ""):
            listed = re.split(r", (?=\w+: )", text) if text else []
            parameters = []
            for each in listed:
                name, _, rest = each.partition(": ")
                kind_of, _, default = rest.partition(" = ")
                kind_of = re.sub(r"[\w.]*\.(?=\w)", "", kind_of)
                parameters.append(Parameter(name, kind_of, not default))
            found.append(Form(method, tuple(parameters)))
    return found


#: Not a call by itself.
LEFT_OUT = {"_end_coalescing"}
FORMS = [form for form in forms_of(dist.ProcessGroup) if form.method not in LEFT_OUT]
BACKEND_FORMS = [form for form in forms_of(native_c10d.Backend) if form.method not in LEFT_OUT]


def test_the_forms_are_found():
    """The numbers of torch 2.13; one more needs a look at what it is."""
    assert len(FORMS) == 35
    assert len(BACKEND_FORMS) == 26
    assert "allreduce(tensor, op, timeout)" in map(str, FORMS)


# ---- arguments -----------------------------------------------------------------------------------

#: Methods whose output, or input, is one tensor with a part for each rank.
WHOLE_OUTPUT = ("_allgather_base", "all_gather_single", "allgather_into_tensor_coalesced")
WHOLE_INPUT = ("_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced")
EXCHANGES = ("alltoall_base", "all_to_all_single")


def tensor(form, name, rank, slot):
    output, parts = "output" in name.lower(), 1
    single = form.method.removesuffix("_coalesced")
    if single in WHOLE_OUTPUT or form.method in WHOLE_OUTPUT:
        parts = RANKS if output else 1
    if single in WHOLE_INPUT or form.method in WHOLE_INPUT:
        parts = 1 if output else RANKS
    if form.method in EXCHANGES:
        parts = RANKS
    if output or (form.method.startswith("recv") and rank == ROOT):
        return torch.zeros(WIDTH * parts)
    return torch.arange(WIDTH * parts, dtype=torch.float32) + 10 * rank + 100 * slot


def root_of(form, style):
    """The root: torch's own default where the options are left out."""
    return 0 if style == "needed" and form.parameters[-1].name == "opts" else ROOT


def value(form, parameter, rank, style):
    """The argument of a rank for a parameter."""
    name, kind, _ = parameter
    make = functools.partial(tensor, form, name, rank)
    has_options = any(each.name == "opts" for each in form.parameters)
    is_root = rank == root_of(form, style)
    match kind:
        case "Tensor":
            return make(0)
        case "Sequence[Sequence[Tensor]]":
            if form.method == "allgather_coalesced":
                return [[make(slot) for slot in range(2)] for _ in range(RANKS)]
            owner = {"gather": "output", "scatter": "input"}.get(form.method)
            if owner is not None and owner in name and not is_root:
                return []
            return [[make(slot) for slot in range(RANKS)]]
        case "Sequence[Tensor]":
            if form.method in ("gather", "scatter") and not has_options and not is_root:
                return []
            several = "coalesced" in form.method or form.method == "alltoall" or not has_options
            if form.method.startswith(("allreduce", "send", "recv")):
                several = "coalesced" in form.method
            return [make(slot) for slot in range(RANKS if several else 1)]
        case "timedelta" | "timedelta | None":
            return timedelta(seconds=20)
        case "ReduceOp":
            return dist.ReduceOp.MAX
        case _ if name in ("root", "dstRank", "srcRank"):
            return {"dstRank": ROOT, "srcRank": 1 - ROOT}.get(name, ROOT)
        case _ if name in ("tag", "arg1"):
            return 7
        case _ if name.endswith("split_sizes"):
            uneven = [[1, 5], [4, 2]]  # what rank r sends
            sent = [uneven[each][rank] for each in range(RANKS)]
            return uneven[rank] if name.startswith("input") else sent
        case _ if name == "opts":
            made = getattr(native_c10d, kind)()
            if hasattr(made, "rootRank"):
                made.rootRank = ROOT
            if hasattr(made, "reduceOp"):
                made.reduceOp = dist.ReduceOp.MAX
            return made
    raise AssertionError(f"{form} has a parameter that this test does not know: {parameter}")


def tensors_in(given):
    if isinstance(given, torch.Tensor):
        return [given]
    return [each for one in given for each in tensors_in(one)] if isinstance(given, list) else []


def outcome(group, form, style, rank):
    """All tensors of a call after it; its work has ended, and so has its future."""
    parameters = [each for each in form.parameters if each.needed or style != "needed"]
    given = [value(form, each, rank, style) for each in parameters]
    if form.method == "all_to_all_single" or form.method == "alltoall_base":
        sizes = [sum(each) for each in given if isinstance(each, list)]
        given[0], given[1] = given[0].new_zeros(sizes[0]), given[1].repeat(2)[: sizes[1]]
    method = getattr(group, form.method)
    if style == "named" and not any(each.name.startswith("arg") for each in parameters):
        work = method(**{each.name: one for each, one in zip(parameters, given, strict=True)})
    else:
        work = method(*given)
    assert work.wait()
    if group is join.gloo or not isinstance(group, dist.ProcessGroup):
        return tensors_in(given)  # the works of Gloo answer less
    assert work.is_completed() and work.is_success() and work.exception() is None
    future = work.get_future()
    same_values(work.result(), future.wait())
    return tensors_in(given)


def same_values(got, wanted):
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        same(one, other)


def message(group, form, style, rank):
    """A message in this form, and its other half in the plain one."""
    sends = form.method == "send"
    if sends == (rank != ROOT):
        return outcome(group, form, style, rank)
    if sends:
        plain = torch.zeros(WIDTH)
        group.recv([plain], 1 - ROOT, 7).wait()
        return [plain]
    group.send([torch.arange(3.0)], ROOT, 7).wait()
    return []


def compare(rank, folder, forms, on_backend):
    groups = [join.gloo, dist.group.WORLD]
    if on_backend:
        groups = [each._get_backend(torch.device("cpu")) for each in groups]
    for form in forms:
        for style in STYLES:
            make = message if form.method in ("send", "recv", "recv_anysource") else outcome
            ours = make(groups[1], form, style, rank)
            try:
                theirs = make(groups[0], form, style, rank)
            except RuntimeError as error:
                if "support" in str(error) or "not implement" in str(error):
                    continue
                raise
            if form.method == "reduce" and rank != root_of(form, style):
                continue  # Gloo leaves partial results there
            try:
                same_values(ours, theirs)
            except AssertionError as error:
                raise AssertionError(f"{form}, {style}: {ours} instead of {theirs}") from error


def test_every_form_gives_what_gloo_gives(run):
    run(compare, FORMS, False)


def test_every_form_of_a_backend_gives_what_gloo_gives(run):
    run(compare, BACKEND_FORMS, True)


# ---- what is no form -----------------------------------------------------------------------------


def refuse(rank, folder):
    group, one = dist.group.WORLD, torch.ones(2)
    for call in (
        lambda: group.allreduce(one, 3),
        lambda: group.allreduce(one, dist.ReduceOp.SUM, op=dist.ReduceOp.SUM),
        lambda: group.broadcast(one),
        lambda: group.broadcast(one, root="0"),
        lambda: group.allreduce(one, operator=dist.ReduceOp.SUM),
        lambda: group.allreduce(3),
    ):
        with pytest.raises(ArgumentTypeError):
            call()
    with pytest.raises(ArgumentTypeError, match=r"takes .*\(tensor, root, timeout\?\); got"):
        group.broadcast(one)
    with pytest.raises(TypeError):
        group.allgather()
    group.barrier(timedelta(seconds=20)).wait()  # nothing has moved


def test_what_is_no_form_is_refused(run):
    run(refuse)
