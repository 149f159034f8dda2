"""`unisono port`: rewrite a program for the other dialect, or for unisono."""

from __future__ import annotations

import argparse
import codecs
import difflib
import importlib.util
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from unisono.core.registry import install_command
from unisono.errors import ArgumentError, Unsupported
from unisono.port.plan import Action
from unisono.port.port import PortedFile, port_file
from unisono.port.program import TOO_DEEP, SourceTree, Unreadable, read_program
from unisono.port.rules import Target
from unisono.tools.formatting import plain, plural
from unisono.tools.port.page import page
from unisono.tools.program_options import add_program_options
from unisono.tools.progress import ProgressBar
from unisono.tools.writing import replace_file, write_file

__all__ = ["configure", "main"]

_COLOURS = {"+": "\x1b[32m", "-": "\x1b[31m", "@": "\x1b[36m"}
_END = "\x1b[0m"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `unisono port`."""
    parser.add_argument(
        "--to",
        metavar="TARGET",
        required=True,
        help="mindspore:comm_func (or mindspore), mindspore:mint, mindspore:ops, torch or unisono",
    )
    parser.add_argument(
        "--write", action="store_true", help="change the files (default: print a diff)"
    )
    parser.add_argument(
        "--report", metavar="FILE", type=Path, help="write an HTML page with each decision"
    )
    add_program_options(parser)
    parser.add_argument(
        "--json", action="store_true", help="print the decisions as one JSON object, not a diff"
    )


def main(arguments: argparse.Namespace) -> int:
    """Print or write what the files become; return 1 if something stays for a person."""
    target = Target.parse(arguments.to, arguments.mindspore_version)
    if importlib.util.find_spec("libcst") is None:
        raise Unsupported(f"unisono port needs LibCST: {install_command('libcst')}")
    program = read_program(arguments.paths, arguments.root, ProgressBar("reading"))
    ported = list(_port(program, target))
    counts = Counter(decision.verdict for file in ported for decision in file.decisions)
    changed = [file for file in ported if file.before != file.after]
    if arguments.json:
        print(json.dumps(_as_data(program, ported), indent=2))
    elif not arguments.write:
        for file in changed:
            _print_diff(file)
    if arguments.report is not None:  # first: nobody sees the decisions once files are written
        write_file(arguments.report, page(target, ported, program.unreadable))
    if arguments.write:
        _write(changed, program)
    for item in program.unreadable:
        print(f"unisono: {item.path}:{item.line}: skipped: {item.reason}", file=sys.stderr)
    files = f"{plural(len(changed), 'file')} {'changed' if arguments.write else 'to change'}"
    print(
        f"unisono: {files}; {plural(counts[Action.REWRITE], 'use')} rewritten, "
        f"{counts[Action.COPY_BACK]} with a copy back, {counts[Action.LEAVE]} left as they are",
        file=sys.stderr,
    )
    return 1 if counts[Action.LEAVE] or program.unreadable else 0


def _port(program: SourceTree, target: Target) -> Iterator[PortedFile]:
    progress = ProgressBar("porting")
    reexporting = {module for module, _ in program.reexported}
    files = [file for file in program.files if file.references or file.name in reexporting]
    for done, file in enumerate(files):
        progress(done, len(files))
        try:
            yield port_file(program, file, target)
        except RecursionError:
            program.unreadable.append(Unreadable(file.path, 1, TOO_DEEP))
    progress(len(files), len(files))


def _print_diff(file: PortedFile) -> None:
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    lines = difflib.unified_diff(
        file.before.splitlines(),
        file.after.splitlines(),
        f"a/{file.path}",
        f"b/{file.path}",
        lineterm="",
    )
    for line in lines:
        text = plain(line.replace("\t", "    ")) if coloured else line
        print(f"{_COLOURS[line[0]]}{text}{_END}" if coloured and line[:1] in _COLOURS else text)


def _write(files: Sequence[PortedFile], program: SourceTree) -> None:
    marked = {each.path for each in program.files if each.has_mark}
    for done, file in enumerate(files):
        mark = codecs.BOM_UTF8 if file.path in marked else b""
        try:
            replace_file(file.path, mark + file.after.encode())
        except ArgumentError as error:
            before = ", ".join(str(each.path) for each in files[:done]) or "none"
            raise ArgumentError(
                f"{error}; changed before it: {before}; no file after it"
            ) from error


def _as_data(program: SourceTree, ported: list[PortedFile]) -> dict[str, Any]:
    return {
        "files": [
            {
                "file": str(file.path),
                "changed": file.before != file.after,
                "uses": [
                    {
                        "line": decision.reference.node.lineno,
                        "name": decision.reference.path,
                        "target": decision.target,
                        "verdict": decision.verdict,
                        "reason": decision.reason,
                    }
                    for decision in file.decisions
                ],
            }
            for file in ported
        ],
        "unreadable": [
            {"file": str(item.path), "line": item.line, "reason": item.reason}
            for item in program.unreadable
        ],
    }
