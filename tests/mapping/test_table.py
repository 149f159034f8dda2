"""The mapping table is complete, its schema refuses errors, and its signatures are right."""

from __future__ import annotations

import copy
import importlib
import inspect
import tomllib
from importlib import resources

import pytest

from unisono import mapping
from unisono.mapping import MappingError

COLLECTIVES = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "gather",
    "groups",
    "objects",
    "reduce",
    "reduce_scatter",
    "scatter",
    "send_recv",
]
#: The values of the defaults that the table writes as names.
MEANINGS = {
    "torch": {},
    "mindspore": {"GlobalComm.WORLD_COMM_GROUP": "hccl_world_group", "ReduceOp.SUM": "sum"},
}


def source(name: str) -> dict:
    return tomllib.loads((resources.files(mapping) / f"{name}.toml").read_text(encoding="utf-8"))


# ---- the table -----------------------------------------------------------------------------------


def test_one_file_for_each_collective():
    assert list(mapping.load()) == COLLECTIVES


def test_every_file_has_content():
    for entry in mapping.load().values():
        assert entry.differences, entry.name
        assert {call.dialect for call in entry.calls} == {"torch", "mindspore"}
        assert all(pair.results for pair in entry.pairs), entry.name
        assert entry.pages or not entry.faults, entry.name


def test_the_fifteen_faults_of_the_pages_are_there():
    faults = [fault for entry in mapping.load().values() for fault in entry.faults]
    assert {fault.number for fault in faults} - {None} == set(range(1, 16))


def test_the_five_pages_have_their_files():
    pages = [page for entry in mapping.load().values() for page in entry.pages]
    for word in (
        "all_reduce",
        "reduce_scatter_tensor",
        "all_gather",
        "reduce",
        "all_to_all_with_output_shape",
    ):
        assert any(page.endswith(f"/{word}.md") for page in pages), word


@pytest.mark.parametrize("name", COLLECTIVES)
def test_differences_and_faults_are_in_both_languages(name):
    entry = mapping.load()[name]
    texts = [entry.title]
    texts += [text for item in entry.differences for text in (item.text, item.reason)]
    texts += [text for item in entry.faults for text in (item.page, item.software)]
    texts += [item.reason for item in entry.missing]
    for text in texts:
        for language in mapping.LANGUAGES:
            assert getattr(text, language).rstrip().endswith((".", "。")), text


def test_every_difference_is_reached_from_some_pair():
    words = mapping.vocabulary()
    reached = {
        word.get("difference")
        for list_name in ("role", "change", "gradient")
        for word in words[list_name].values()
    }
    assert reached - {None} <= set(mapping.differences())
    for entry in mapping.load().values():
        reached |= {name.difference for name in entry.names}
        for pair in entry.pairs:
            reached |= {row.difference for row in (*pair.parameters, *pair.results)}
        # In a file with one pair, a difference without pairs is about that pair.
        reached |= {item.id for item in entry.differences if item.pairs or len(entry.pairs) == 1}
    assert {name for name in mapping.differences() if not name.startswith("objects.")} <= reached


def test_calls_of_mindspore_have_a_gradient_if_they_take_tensors():
    without_tensors = {"P2POp", "CommHandle"}
    for entry in mapping.load().values():
        for call in entry.calls:
            takes = entry.name not in ("barrier", "groups", "objects")
            takes &= call.dialect == "mindspore" or call.style == "functional"
            takes &= call.name not in without_tensors
            assert bool(call.gradient) == takes, call.path


def test_every_backward_belongs_to_a_call():
    used = {call.gradient for call in mapping.calls().values()} - {None}
    assert used == set(mapping.vocabulary()["gradient"])
    assert set(mapping.gradients()) == used - {"to_root"}  # which only torch has


def test_the_vocabulary_is_in_both_languages():
    for name, words in mapping.vocabulary().items():
        for key, word in words.items():
            if name not in ("versions", "checked"):
                assert word["en"] and word["zh"], (name, key)


def test_changes_agree_with_the_names():
    for entry in mapping.load().values():
        for pair in entry.pairs:
            if pair.torch is None or pair.mindspore is None:
                continue
            for row in pair.parameters:
                where = (entry.name, pair.name, row)
                if row.torch and row.mindspore:
                    assert ("rename" in row.changes) == (row.torch != row.mindspore), where
                    assert not {"drop", "add"} & set(row.changes), where
                elif row.torch:
                    assert {"drop", "rebind"} & set(row.changes), where
                else:
                    assert "add" in row.changes, where


def test_defaults_that_differ_are_marked():
    calls = mapping.calls()
    for entry in mapping.load().values():
        for pair in entry.pairs:
            if pair.torch is None or pair.mindspore is None:
                continue
            there = {item.name: item.default for item in calls[pair.torch].parameters}
            here = {item.name: item.default for item in calls[pair.mindspore].parameters}
            for row in pair.parameters:
                if row.torch and row.mindspore:
                    differs = there[row.torch] != here[row.mindspore]
                    assert ("default" in row.changes) == differs, (entry.name, pair.name, row)


# ---- the schema refuses --------------------------------------------------------------------------


def broken(change) -> dict:
    data = copy.deepcopy(source("all_reduce"))
    change(data)
    return data


def row(data: dict, number: int = 0) -> dict:
    return data["pair"][0]["parameters"][number]


def test_the_unchanged_entry_is_accepted():
    assert mapping.parse("all_reduce", broken(lambda data: None)).name == "all_reduce"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(colour="red"), "all_reduce: unknown key 'colour'"),
        (lambda d: row(d).update(tnesor="x"), r"parameters\[0\]: unknown key 'tnesor'"),
        (lambda d: d.pop("title"), "all_reduce: 'title' is missing"),
        (lambda d: d["title"].pop("zh"), "title: 'zh' is missing"),
        (lambda d: d["title"].pop("en"), "title: 'en' is missing"),
        (lambda d: d["title"].update(fr="Tous."), "title: unknown key 'fr'"),
        (lambda d: d["title"].update(zh=" "), "title.zh: the text is empty"),
        (lambda d: d["title"].update(zh="English."), "title.zh: this is not Chinese"),
        (lambda d: d["title"].update(en="中文。"), "title.en: this is Chinese"),
        (lambda d: d["difference"][0].pop("reason"), r"difference\[0\]: 'reason' is missing"),
        (lambda d: d["difference"][0]["text"].pop("zh"), "text: 'zh' is missing"),
        (
            lambda d: d["difference"][0].update(kind="odd"),
            "'odd' is not in the list 'kind'; it has result",
        ),
        (lambda d: d["difference"][0].update(id="reduce.x"), "must begin with 'all_reduce'"),
        (lambda d: d["difference"][0].update(pairs=["x"]), "unknown pair 'x'"),
        (lambda d: d["fault"][0].update(unisono="both"), "'both' is not in the list 'side'"),
        (lambda d: d["fault"][0].update(number="1"), "number: expected int, found '1'"),
        (lambda d: d["fault"][0].pop("page"), r"fault\[0\]: 'page' is missing"),
        (lambda d: d.update(calls={}), "calls: expected an array"),
        (lambda d: d.update(calls=["x"]), r"calls\[0\]: expected a table"),
        (lambda d: d["calls"][2].update(since="2.99"), "unknown version '2.99' of mindspore"),
        (lambda d: d["calls"][0].update(since="2.7.1"), "unknown version '2.7.1' of torch"),
        (lambda d: d["calls"][2].pop("successor"), "deprecated, but without a successor"),
        (lambda d: d["calls"][0].update(signature="(a, a=)"), "is not a signature"),
        (lambda d: d["calls"][0].update(style="odd"), "'odd' is not in the list 'style'"),
        (lambda d: d["calls"][2].update(gradient="odd"), "'odd' is not in the list 'gradient'"),
        (lambda d: d["calls"][0].update(gradient="exchange"), "'gradient' belongs to calls of"),
        (lambda d: d["calls"][0].update(arguments="(x)"), "'arguments' belongs to the style"),
        (lambda d: d["calls"][5].pop("arguments"), "'arguments' belongs to the style"),
        (lambda d: d["calls"][0].update(same_as="f(x)"), "'same_as' and 'fixed' belong to"),
        (
            lambda d: d["calls"][5].pop("same_as") and d["calls"][5].update(fixed="(op=1)"),
            "'fixed'",
        ),
        (lambda d: d["calls"][5].update(same_as="comm_func.x(op)"), "comm_func.x' is not a call"),
        (lambda d: d["calls"][5].update(same_as="comm_func"), "'comm_func' is not a call"),
        (lambda d: d["calls"][5].update(same_as="("), "is not a call"),
        (lambda d: d["calls"][5].update(fixed="(size=1)"), "has no parameter 'size'"),
        (
            lambda d: d["calls"][5].update(same_as="comm_func.all_reduce(x)"),
            "AllReduce has no parameter 'x'",
        ),
        (
            lambda d: d["calls"][0].update(alias_of="torch.distributed.x"),
            "'torch.distributed.x' is not a call of this file",
        ),
        (lambda d: d["calls"][0].update(alias_of=d["calls"][0]["path"]), "or an alias"),
        (lambda d: d["calls"][0].update(alias_of=d["calls"][2]["path"]), "is not the same as"),
        (lambda d: d["calls"][0].update(path="jax.psum"), "begins with torch or mindspore"),
        (lambda d: d["calls"].append(d["calls"][0]), "a call is listed twice"),
        (lambda d: d["pair"].append(d["pair"][0]), "a pair is listed twice"),
        (lambda d: d["pair"][0].update(torch="torch.x"), "'torch.x' is not a torch call"),
        (lambda d: d["pair"][0].pop("mindspore"), "has no call in mindspore"),
        (lambda d: row(d).update(torch="input"), "rows for .*'input'.* takes .*'tensor'"),
        (lambda d: d["pair"][0]["parameters"].pop(), "but torch.distributed.all_reduce takes"),
        (lambda d: d["pair"][0]["parameters"].append(row(d)), "rows for"),
        (lambda d: d["pair"][0]["parameters"].append({"role": "op"}), "names no parameter"),
        (lambda d: row(d).update(role="odd"), "'odd' is not in the list 'role'"),
        (lambda d: row(d).update(changes=["odd"]), "'odd' is not in the list 'change'"),
        (lambda d: row(d).update(changes="rebind"), "changes: expected an array"),
        (
            lambda d: d["pair"][0]["results"][0].update(mode="odd"),
            "'odd' is not in the list 'mode'",
        ),
        (
            lambda d: d["pair"][0]["results"][0].update(rank="odd"),
            "'odd' is not in the list 'rank'",
        ),
        (lambda d: d["pair"][0]["results"][0].pop("torch"), "'torch' is missing"),
        (
            lambda d: d["pair"][0]["results"][0]["torch"].update(returns="x"),
            "is not in the list 'returns'",
        ),
        (
            lambda d: d["pair"][0]["results"][0]["torch"].update(value="x"),
            "is not in the list 'value'",
        ),
        (lambda d: d.update(name="reduce"), "the entry has the name 'reduce'"),
    ],
)
def test_the_schema_refuses(change, message):
    with pytest.raises(MappingError, match=message):
        mapping.parse("all_reduce", broken(change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: row(d).update(difference="all_reduce.x"), "no difference 'all_reduce.x'"),
        (lambda d: d["calls"][2].update(successor="mindspore.x"), "no call 'mindspore.x'"),
        (lambda d: d["difference"][1].update(id=d["difference"][0]["id"]), "id .* twice"),
        (lambda d: d["fault"][0].update(id=d["difference"][0]["id"]), "id .* twice"),
        (
            lambda d: d.update(
                missing=[
                    {"path": "torch.y", "nearest": "torch.x", "reason": {"en": "x", "zh": "无"}}
                ]
            ),
            "no call 'torch.x'",
        ),
    ],
)
def test_references_between_files_are_checked(change, message):
    entries = dict(mapping.load(), all_reduce=mapping.parse("all_reduce", broken(change)))
    with pytest.raises(MappingError, match=message):
        mapping.check_references(entries)


def test_a_call_belongs_to_one_file():
    entries = dict(mapping.load())
    entries["again"] = entries["reduce"]
    with pytest.raises(MappingError, match="twice"):
        mapping.check_references(entries)


# ---- signatures ----------------------------------------------------------------------------------


def find(path: str) -> object:
    """Import the longest module in a path and take the rest as attributes."""
    names = path.split(".")
    for count in range(len(names) - 1, 0, -1):
        try:
            found: object = importlib.import_module(".".join(names[:count]))
        except ModuleNotFoundError:
            continue
        for name in names[count:]:
            found = getattr(found, name)
        return found
    raise AttributeError(path)


def parameters_of(found: object) -> list[inspect.Parameter]:
    thing = found.__init__ if inspect.isclass(found) else found
    parameters = list(inspect.signature(thing).parameters.values())
    if inspect.isclass(found):
        parameters = parameters[1:]
    # Parameters that begin with an underscore are private.
    return [parameter for parameter in parameters if not parameter.name.startswith("_")]


def check_signature(call: mapping.UpstreamCall, found: object) -> None:
    """Compare names, order, defaults and the star with the table."""
    parameters = parameters_of(found)
    assert [item.name for item in parameters] == [item.name for item in call.parameters]
    for real, told in zip(parameters, call.parameters, strict=True):
        assert (real.kind is inspect.Parameter.KEYWORD_ONLY) == told.keyword_only, real.name
        if told.default is None:
            assert real.default is inspect.Parameter.empty, real.name
        elif call.dialect == "torch" and told.default == "ReduceOp.SUM":
            assert "SUM" in str(real.default), real.name
        else:
            meaning = MEANINGS[call.dialect].get(told.default)
            assert real.default == (meaning or eval(told.default)), real.name


CALLS = list(mapping.calls().values())


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.path)
def test_our_signature(call):
    check_signature(call, find(mapping.face_path(call.path)))


@pytest.mark.parametrize(
    "call", [call for call in CALLS if call.dialect == "torch"], ids=lambda call: call.path
)
def test_real_torch_has_the_same_signature(call):
    torch = pytest.importorskip("torch")
    checked = mapping.vocabulary()["checked"]["torch"]
    if not torch.__version__.startswith(f"{checked}."):
        pytest.skip(f"the table is about torch {checked}")
    check_signature(call, find(call.path))


FACES = [
    "torch.distributed",
    "torch.distributed.nn.functional",
    "mindspore.communication",
    "mindspore.communication.comm_func",
    "mindspore.mint.distributed",
    "mindspore.ops",
    "mindspore.ops.communication",
]


@pytest.mark.parametrize("module", FACES)
def test_the_table_has_every_name_of_a_face(module):
    known = set(mapping.calls())
    known |= {name.path for entry in mapping.load().values() for name in entry.names}
    names = importlib.import_module(mapping.face_path(module)).__all__
    assert {f"{module}.{name}" for name in names} - {"mindspore.ops.communication"} <= known


@pytest.mark.parametrize(
    "name",
    [name for entry in mapping.load().values() for name in entry.names],
    ids=lambda name: name.path,
)
def test_names_without_a_signature_are_in_the_face(name):
    assert find(mapping.face_path(name.path)) is not None
    if name.path.startswith("torch."):
        pytest.importorskip("torch")
        assert find(name.path) is not None


def test_calls_of_the_two_main_modules_are_in_a_pair():
    paired = {
        path
        for entry in mapping.load().values()
        for pair in entry.pairs
        for path in (pair.torch, pair.mindspore)
    }
    paired.add("mindspore.communication.comm_func.CommHandle")
    for call in mapping.calls().values():
        if call.path.startswith(("torch.", "mindspore.communication.")) and not call.same_as:
            assert (call.alias_of or call.path) in paired


FUNCTIONAL = [call for call in CALLS if call.dialect == "torch" and call.style == "functional"]


@pytest.mark.parametrize("call", FUNCTIONAL, ids=lambda call: call.path)
def test_functions_of_torch_have_the_pair_of_their_name(call):
    """What a function that returns its result has in common with the call that writes in place."""
    same = mapping.same_function(call)
    assert same is not None
    pairs = [pair for entry in mapping.load().values() for pair in entry.pairs]
    torch = f"torch.distributed.{call.name}"
    (pair,) = [one for one in pairs if (one.torch, one.mindspore) == (torch, same[0].path)]
    rows = {row.mindspore: row for row in pair.parameters}
    for name, value in same[1].items():
        assert rows[name].torch in (value.id, "scatter_list"), name
    ours = call.gradient if call.name != "broadcast" else "unchanged"  # MindSpore adds nothing up
    assert same[0].gradient == ours


MISSING = [item for entry in mapping.load().values() for item in entry.missing]


@pytest.mark.parametrize("item", MISSING, ids=lambda item: item.path)
def test_missing_names_are_missing(item):
    with pytest.raises(AttributeError):
        find(mapping.face_path(item.path))
    if item.path.startswith("torch."):
        pytest.importorskip("torch")
        find(item.path)
    if item.nearest and item.nearest.startswith("unisono."):
        assert find(item.nearest)


def test_missing_names_of_the_torch_face_are_in_the_table():
    face = importlib.import_module("unisono.torch.distributed")
    told = {f"torch.distributed.{name}" for name in face._NEAREST}
    told |= {f"torch.distributed.nn.{name}" for name in face.nn._NEAREST}
    assert told == {item.path for item in MISSING if item.path.startswith("torch.")}
