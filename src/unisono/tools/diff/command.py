"""`unisono diff`: show one collective in both dialects, side by side, from the mapping table."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import sys
from typing import Any

from unisono import mapping
from unisono.launch.output.plain_text import can_show
from unisono.tools.diff.report import report
from unisono.tools.diff.selection import find, names
from unisono.tools.diff.wording import in_language
from unisono.tools.table import table, terminal_columns

__all__ = ["configure", "main"]

#: Limits of the width: longer lines of prose are hard to read.
_NARROWEST = 40
_WIDEST = 120
#: Something that a terminal shows if it can show our Chinese texts.
_CHINESE = "参"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `unisono diff`."""
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="a collective, as either framework calls it (default: list all)",
    )
    parser.add_argument(
        "--lang",
        choices=mapping.LANGUAGES,
        default="en",
        help="language of the texts (default: en)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(arguments: argparse.Namespace) -> int:
    """Print one entry, or the list of all; return 2 for a name that is in neither dialect."""
    if arguments.lang == "zh" and not arguments.json and not can_show(_CHINESE):
        print(
            f"unisono: this terminal cannot show Chinese (its encoding is {sys.stdout.encoding}), "
            "so the texts are English; set LC_ALL=C.UTF-8, or PYTHONIOENCODING=utf-8",
            file=sys.stderr,
        )
        arguments.lang = "en"
    columns = terminal_columns(_NARROWEST, _WIDEST)
    if arguments.name is None:
        entries = mapping.load().values()
        if arguments.json:
            _print_json({entry.name: dataclasses.asdict(entry) for entry in entries})
        else:
            rows = [(entry.name, in_language(arguments.lang, entry.title)) for entry in entries]
            print("\n".join(table(rows, columns)))
        return 0
    selection = find(arguments.name)
    if selection is None:
        close = difflib.get_close_matches(arguments.name.rpartition(".")[2], names(), 3, 0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else "`unisono diff` lists all"
        print(f"unisono: no call is named {arguments.name!r}; {hint}", file=sys.stderr)
        return 2
    if arguments.json:
        answer = dataclasses.asdict(selection.entry)
        answer["shared"] = [
            dataclasses.asdict(item)
            for item in selection.differences
            if item not in selection.entry.differences
        ]
        _print_json(answer)
    else:
        print("\n".join(report(selection, arguments.lang, columns)))
    return 0


def _print_json(answer: dict[str, Any]) -> None:
    print(json.dumps(answer, indent=2, ensure_ascii=not can_show(_CHINESE)))
