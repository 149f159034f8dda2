"""`unisono diff`: names, languages, JSON, wrong names, and the width of its lines."""

from __future__ import annotations

import json

import pytest

from unisono import mapping
from unisono.cli import main
from unisono.tools import table
from unisono.tools.diff.report import report
from unisono.tools.diff.selection import find


def ask(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(["diff", *arguments])
    done = capsys.readouterr()
    return code, done.out, done.err


def test_without_a_name_it_lists_all(capsys):
    code, out, _ = ask(capsys)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if line[0] != " "] == list(mapping.load())


def test_one_collective(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = ask(capsys, "all_reduce")
    assert code == 0
    assert "torch.distributed.all_reduce( | mindspore.communication.comm_func.all_reduce(" in out
    assert "    group=None,               |     group=GlobalComm.WORLD_COMM_GROUP," in out
    for heading in (
        "Parameters",
        "Results",
        "Differences",
        "Where the official page is wrong",
        "Other calls for the same purpose",
        "Versions",
    ):
        assert f"\n{heading}\n" in out
    assert "all_reduce.page-no-tensor (fault 1)" in out
    assert "unisono follows: the software" in out
    assert "since 2.3; deprecated in 2.9; successor" in out
    assert "groups.object-or-name" in out, "what all collectives share is shown as well"
    assert out.rstrip().endswith("signature checked against torch 2.13, MindSpore 2.10")


def test_gradients_of_mindspore(capsys):
    _, out, _ = ask(capsys, "AlltoAllV")
    assert "\nGradients in MindSpore\n" in out
    assert "mindspore.ops.AlltoAllV" in out and "the same exchange, back" in out
    assert "groups.no-gradient" in out, "in place there is a difference"
    _, out, _ = ask(capsys, "broadcast", "--lang", "zh")
    assert "MindSpore 中的梯度" in out and "groups.no-gradient" not in out
    _, out, _ = ask(capsys, "barrier")
    assert "Gradients" not in out


def test_chinese(capsys):
    code, out, _ = ask(capsys, "reduce", "--lang", "zh")
    assert code == 0
    for word in ("参数", "差异", "官方页面的错误", "原因: ", "全零"):
        assert word in out
    assert "Parameters" not in out and "Why" not in out


def test_an_unknown_language(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["diff", "reduce", "--lang", "fr"])
    assert stop.value.code == 2
    assert "invalid choice: 'fr'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("all_gather_into_tensor", "all_gather"),
        ("AllReduce", "all_reduce"),
        ("comm_func.all_reduce", "all_reduce"),
        ("mindspore.communication.comm_func.all_reduce", "all_reduce"),
        ("unisono.mindspore.ops.AllReduce", "all_reduce"),
        ("torch.distributed.broadcast", "broadcast"),
        ("dist.reduce_scatter", "reduce_scatter"),
        ("distributed.get_rank", "groups"),
        ("all_to_all_v_c", "all_to_all"),
        ("irecv", "send_recv"),
        ("Receive", "send_recv"),
        ("CommHandle", "send_recv"),
        ("create_group", "groups"),
        ("mint.distributed.new_group", "groups"),
        ("ReduceOp", "groups"),
        ("GlobalComm", "groups"),
        ("scatter_object_list", "objects"),
        ("TCPStore", "groups"),
        ("NeighborExchange", "all_to_all"),
    ],
)
def test_names_of_either_dialect(name, entry):
    assert find(name).entry.name == entry


@pytest.mark.parametrize("path", mapping.calls())
def test_every_call_is_found_by_path_and_by_name(path):
    entry = next(e for e in mapping.load().values() if any(c.path == path for c in e.calls))
    assert find(path).entry is entry
    assert find(path.rpartition(".")[2]).entry is entry


def test_a_narrow_name_shows_its_own_pairs():
    selection = find("get_rank")
    assert [pair.name for pair in selection.pairs] == ["get_rank"]
    assert {call.name for call in selection.others} == {"get_rank"}
    assert "groups.before-init" in [item.id for item in selection.differences]
    assert "groups.operators" not in [item.id for item in selection.differences]
    gather = find("all_gather_into_tensor")
    assert [pair.name for pair in gather.pairs] == ["all_gather", "all_gather_into_tensor"]
    assert "mindspore.ops.AllGather" in [call.path for call in gather.others]


def test_a_name_that_is_not_in_unisono(capsys):
    code, out, _ = ask(capsys, "torch.distributed.DeviceMesh")
    assert code == 0
    assert out.splitlines()[0] == "torch.distributed.DeviceMesh: Not in unisono"
    assert "nearest: torch.distributed.new_subgroups" in out


def test_a_constant(capsys):
    code, out, _ = ask(capsys, "ReduceOp")
    assert code == 0
    assert out.startswith("torch.distributed.ReduceOp\n")
    assert "groups.operators" in out and "Versions" not in out


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("all_reduse", "did you mean all_reduce"),
        ("AllGathr", "did you mean AllGather"),
        ("comm_func.all_gather_into_tensr", "did you mean all_gather_into_tensor"),
        ("qqqqqqqq", "`unisono diff` lists all"),
    ],
)
def test_wrong_names(capsys, name, hint):
    code, out, err = ask(capsys, name)
    assert (code, out) == (2, "")
    assert f"no call is named {name!r}" in err and hint in err


def test_json_of_one(capsys):
    code, out, _ = ask(capsys, "AllReduce", "--json")
    answer = json.loads(out)
    assert code == 0
    assert answer["name"] == "all_reduce"
    assert answer["pairs"][0]["parameters"][0]["changes"] == ["rebind"]
    assert answer["differences"][0]["text"]["zh"]
    assert "groups.object-or-name" in [item["id"] for item in answer["shared"]]


def test_json_of_all(capsys):
    code, out, _ = ask(capsys, "--json")
    assert code == 0
    assert list(json.loads(out)) == list(mapping.load())


@pytest.mark.parametrize("size", [40, 60, 80, 100, 120])
@pytest.mark.parametrize("language", mapping.LANGUAGES)
def test_lines_fit(size, language):
    for name in mapping.load():
        for line in report(find(name), language, size):
            assert table.width(line) <= size, line


def test_the_width_of_the_terminal_is_used(capsys, monkeypatch):
    for size, limit in (("64", 64), ("500", 120)):
        monkeypatch.setenv("COLUMNS", size)
        _, out, _ = ask(capsys, "groups", "--lang", "zh")
        widest = max(table.width(line) for line in out.splitlines())
        assert limit - 8 < widest <= limit
