"""Write the files that commands are asked for."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from unisono.errors import ArgumentError

__all__ = ["replace_file", "write_file"]


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file, or say in one sentence why that is not possible."""
    try:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise ArgumentError(f"cannot write {path}: {error.strerror}") from error


def replace_file(path: Path, content: bytes) -> None:
    """Change a file whole or not at all: a full disk must not cost what was in it."""
    path = path.resolve()  # what a link leads to
    made = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".unisono-", delete=False) as file:
            made = file.name
            file.write(content)
        shutil.copymode(path, made)
        before = path.stat()
        with contextlib.suppress(PermissionError):  # only root may give files away
            os.chown(made, before.st_uid, before.st_gid)
        Path(made).replace(path)
    except OSError as error:
        if made is not None:
            Path(made).unlink(missing_ok=True)
        raise ArgumentError(f"cannot write {path}: {error.strerror}") from error
