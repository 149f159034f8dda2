"""`unisono check`: list the distributed calls of a program, and what would become of each."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from unisono.errors import ArgumentError
from unisono.port.program import read_program
from unisono.port.rules import Target
from unisono.tools.check.findings import Checked, find
from unisono.tools.check.report import as_data, report
from unisono.tools.check.sarif import sarif
from unisono.tools.program_options import add_program_options
from unisono.tools.progress import ProgressBar
from unisono.tools.table import terminal_columns
from unisono.tools.writing import write_file

__all__ = ["configure", "main"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `unisono check`."""
    parser.add_argument(
        "--to",
        metavar="TARGET",
        help="torch, mindspore:comm_func, :mint or :ops (default: the other dialect)",
    )
    add_program_options(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--sarif", metavar="FILE", type=Path, help="also write a SARIF file for code review"
    )


def main(arguments: argparse.Namespace) -> int:
    """Print all calls; return 1 if something needs a person."""
    if arguments.to is None:
        target = Target.other(arguments.mindspore_version)
    else:
        target = Target.parse(arguments.to, arguments.mindspore_version)
    if target.dialect == "unisono":
        raise ArgumentError(
            "check has no target 'unisono', where only imports change; "
            "see `unisono port --to unisono`"
        )
    program = read_program(arguments.paths, arguments.root, ProgressBar("reading"))
    findings: Checked = find(program, target, ProgressBar("checking"))
    if arguments.sarif is not None:
        write_file(arguments.sarif, json.dumps(sarif(findings), indent=2) + "\n")
    if arguments.json:
        print(json.dumps(as_data(findings), indent=2))
    else:
        print("\n".join(report(findings, terminal_columns())))
    return 1 if findings.need_a_person else 0
