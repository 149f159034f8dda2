"""The table that all commands share: columns, wrapping, wide characters, the terminal's width."""

from __future__ import annotations

import pytest

from unisono.tools import table


def test_wide_characters_line_up():
    rows = [("参数", "x"), ("ab", "y"), ("张量 t", "z")]
    lines = table.table(rows, 40, between=" | ")
    assert len({table.width(line.partition("|")[0]) for line in lines}) == 1


@pytest.mark.parametrize(
    ("text", "size", "lines"),
    [
        ("one two three", 7, ["one two", "three"]),
        ("一二三四五", 4, ["一二", "三四", "五"]),
        ("一二\uff0c三", 4, ["一", "二\uff0c", "三"]),
        ("一\uff08二\uff09", 6, ["一", "\uff08二\uff09"]),
        ("用 op 合并", 7, ["用 op", "合并"]),
        ("torch.distributed.all_reduce", 18, ["torch.distributed.", "all_reduce"]),
        ("abcdefgh", 3, ["abc", "def", "gh"]),
        ("", 5, [""]),
    ],
)
def test_wrapping(text, size, lines):
    assert table.wrap(text, size) == lines


def test_numbers_are_aligned_on_the_right() -> None:
    rows = [("size", "time"), ("8 B", "4.47 µs"), ("64 KiB", "12 µs")]
    assert table.table(rows, 40, align=">>") == [
        "  size     time",
        "   8 B  4.47 µs",
        "64 KiB    12 µs",
    ]


def test_without_a_limit_no_cell_is_broken() -> None:
    long = "a finding " * 40
    assert table.table([("engine", "mpi", long.strip())], None) == [f"engine  mpi  {long.strip()}"]
    assert len(table.table([("engine", "mpi", long.strip())], 60)) > 5


def test_a_narrow_table_keeps_words_whole() -> None:
    rows = [("rank", "state", "waits for"), ("0", "running and fine", "nobody at all")]
    assert table.table(rows, 21) == [
        "rank  state    waits",
        "               for",
        "0     running  nobody",
        "      and      at all",
        "      fine",
    ]
    # Where words fit with narrow gaps only, the gaps are narrow.
    assert table.table(rows, 19)[2] == "0    running nobody"


def test_brackets_are_not_markup() -> None:
    rows = [("engine", "pip install 'package[extra]' [bold]or[/bold] not")]
    assert table.table(rows, 100) == ["engine  pip install 'package[extra]' [bold]or[/bold] not"]


@pytest.mark.parametrize(("columns", "expected"), [("20", 48), ("90", 90), ("500", 160)])
def test_the_width_to_write_for(
    columns: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert table.terminal_columns() == expected
