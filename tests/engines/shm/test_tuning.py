"""The file that `unisono bench --tune` writes and that a job reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from unisono.engines.shm import tuning
from unisono.engines.shm.tuning import CopyRange

RANGES = {
    ("all_gather", 2): CopyRange(32768, 4194304),
    ("all_gather", 8): CopyRange(65536),
    ("broadcast", 2): CopyRange(None),
}


def test_what_is_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNISONO_CACHE", str(tmp_path / "cache"))
    assert tuning.read() == {}
    path = tuning.write(RANGES)
    assert path == tuning.file() == tmp_path / "cache/tuning.json"
    assert tuning.read() == RANGES
    assert [entry.name for entry in path.parent.iterdir()] == ["tuning.json"]


def test_the_format_is_the_documented_one(tmp_path: Path) -> None:
    found = json.loads(tuning.write(RANGES, tmp_path / "tuning.json").read_text())
    assert found["schema"] == 1
    assert set(found["machine"]) == {"cpu", "cores"}
    assert found["single_copy"]["all_gather"]["2"] == {"from": 32768, "below": 4194304}
    assert found["single_copy"]["broadcast"] == {"2": {"from": None, "below": None}}


@pytest.mark.parametrize(
    ("key", "value"), [("machine", {"cpu": "another", "cores": 1}), ("schema", 2)]
)
def test_another_machine_or_schema_is_not_used(key: str, value: Any, tmp_path: Path) -> None:
    path = tuning.write(RANGES, tmp_path / "tuning.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    assert tuning.read(path) == {}


@pytest.mark.parametrize(
    "single_copy",
    [
        {"broadcast": {"2": {"from": -1, "below": None}}},
        {"broadcast": {"2": {"from": "64K", "below": None}}},
        {"broadcast": {"2": {"from": True, "below": None}}},
        {"broadcast": {"two": {"from": 1, "below": None}}},
        {"broadcast": {"2": {"from": 1}}},
        {"broadcast": {"2": 7}},
        [],
    ],
)
def test_a_damaged_file_is_ignored_with_a_warning(single_copy: Any, tmp_path: Path) -> None:
    path = tuning.write({}, tmp_path / "tuning.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "single_copy": single_copy}))
    with pytest.warns(RuntimeWarning, match=r"tuning.json is ignored, .* delete it"):
        assert tuning.read(path) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00"])
def test_what_is_no_such_file_is_ignored_with_a_warning(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    path.write_text(text)
    with pytest.warns(RuntimeWarning, match="run `unisono bench --tune` again"):
        assert tuning.read(path) == {}


def test_the_next_larger_number_of_ranks_counts() -> None:
    found = [tuning.for_ranks(RANGES, "all_gather", ranks) for ranks in (1, 2, 3, 8, 9)]
    assert found == [CopyRange(32768, 4194304)] * 2 + [CopyRange(65536)] * 2 + [None]
    assert tuning.for_ranks(RANGES, "reduce", 2) is None


def test_a_range_contains_shares() -> None:
    inside = [32768, 4194303]
    outside = [0, 32767, 4194304]
    assert all(share in CopyRange(32768, 4194304) for share in inside)
    assert not any(share in CopyRange(32768, 4194304) for share in outside)
    assert 1 << 40 in CopyRange(0) and 1 << 40 not in CopyRange(None)
