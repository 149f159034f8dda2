"""The mapping table against the signatures of real MindSpore."""

from __future__ import annotations

import importlib
import inspect

import pytest

mindspore = pytest.importorskip("mindspore")

from unisono import mapping  # noqa: E402  (after the check for MindSpore)

CHECKED = mapping.vocabulary()["checked"]["mindspore"]
MEANINGS = {"GlobalComm.WORLD_COMM_GROUP": "hccl_world_group", "ReduceOp.SUM": "sum"}
CALLS = [call for call in mapping.calls().values() if call.dialect == "mindspore"]

pytestmark = pytest.mark.skipif(
    not mindspore.__version__.startswith(f"{CHECKED}."),
    reason=f"the table is about MindSpore {CHECKED}",
)


def find(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.path)
def test_real_mindspore_has_the_same_signature(call: mapping.UpstreamCall) -> None:
    found = find(call.path)
    thing = found.__init__ if inspect.isclass(found) else found
    parameters = list(inspect.signature(thing).parameters.values())
    if inspect.isclass(found):
        parameters = parameters[1:]
    assert [item.name for item in parameters] == [item.name for item in call.parameters]
    for real, listed in zip(parameters, call.parameters, strict=True):
        assert (real.kind is inspect.Parameter.KEYWORD_ONLY) == listed.keyword_only
        if listed.default is None:
            assert real.default is inspect.Parameter.empty
        else:
            assert real.default == (MEANINGS.get(listed.default) or eval(listed.default))


@pytest.mark.parametrize(
    "module",
    [
        "mindspore.communication",
        "mindspore.communication.comm_func",
        "mindspore.mint.distributed",
        "mindspore.ops.communication",
    ],
)
def test_every_public_name_of_a_module_is_in_the_table(module: str) -> None:
    known = {call.path for call in CALLS}
    known |= {name.path for entry in mapping.load().values() for name in entry.names}
    public = set(importlib.import_module(module).__all__)
    assert {f"{module}.{name}" for name in public} <= known
