"""Options of `unisono check` and `unisono port` about the program that they read."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_program_options"]


def _path(text: str) -> Path:
    if not text:  # as a variable of the shell that is not set; pathlib takes it for "."
        raise argparse.ArgumentTypeError("it is empty")
    return Path(text)


def add_program_options(parser: argparse.ArgumentParser) -> None:
    """Add the files, what the program imports, and for which MindSpore it is."""
    parser.add_argument("paths", metavar="PATH", nargs="+", type=_path, help="files and folders")
    parser.add_argument(
        "--root",
        metavar="MODULE",
        action="append",
        default=[],
        help="a module that has torch.distributed's names, such as deepspeed.comm; may be repeated",
    )
    parser.add_argument(
        "--mindspore-version",
        metavar="V",
        help="the MindSpore that the program is for (default: the newest one in the mapping table)",
    )
