"""Write the files that commands are asked for."""

from __future__ import annotations

from pathlib import Path

from unisono.errors import ArgumentError

__all__ = ["write_file"]


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file, or say in one sentence why that is not possible."""
    try:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise ArgumentError(f"cannot write {path}: {error.strerror}") from error
