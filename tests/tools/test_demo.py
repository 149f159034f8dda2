"""`unisono demo` shows the right values on both engines, and reports a wrong one."""

from __future__ import annotations

import argparse
import json

import pytest

from unisono.tools.demo import command


def test_demo(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(argparse.Namespace(engine=engine, json=False)) == 0
    out = capsys.readouterr().out
    assert "60 64 68 72" in out
    assert "40 results checked" in out


def test_demo_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(argparse.Namespace(engine="threads", json=True)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["wrong"] == []
    assert found["ranks"][3]["all_to_all"] == {
        "torch": [3, 13, 23, 33],
        "mindspore": [3, 13, 23, 33],
    }


def test_demo_finds_a_wrong_value(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_TOTAL", [0.0, 0.0, 0.0, 0.0])
    assert command.main(argparse.Namespace(engine="threads", json=False)) == 1
    assert "all_reduce in torch on rank 2" in capsys.readouterr().err
