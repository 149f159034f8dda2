"""The Python environment of each peer: given by the user, or made on demand in the cache folder."""

from __future__ import annotations

import fcntl
import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from unisono.core import environment
from unisono.errors import ArgumentError, LaunchError
from unisono.tools.bench.peers import PACKAGES

__all__ = ["given_pythons", "peer_python"]

#: Written last, so that an environment without it is not complete.
_MARK = "unisono-peer.txt"
_PIP = (
    *("-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"),
    *("--retries", "1", "--timeout", "15", "--only-binary", ":all:"),
)
#: The torch of PyPI brings gigabytes for GPUs; a version for CPUs alone counts as newer to pip.
_MORE = {"gloo": ("--extra-index-url", "https://download.pytorch.org/whl/cpu")}


def given_pythons(texts: list[str]) -> dict[str, str]:
    """Read `--peer-env NAME=PYTHON` options; an environment's folder is as good as its Python."""
    found = {}
    for text in texts:
        name, separator, path = text.partition("=")
        if not separator or not path:
            raise ArgumentError(
                f"--peer-env is {text!r}; write NAME=PYTHON, as mpich=env/bin/python"
            )
        if name not in PACKAGES:
            raise ArgumentError(f"no peer {name!r}; there are {', '.join(PACKAGES)}")
        python = shutil.which(Path(path) / "bin/python" if Path(path).is_dir() else path)
        if python is None:
            raise ArgumentError(f"--peer-env {text}: there is no Python {path!r}")
        found[name] = str(Path(python).absolute())
    return found


def peer_python(name: str, given: Mapping[str, str]) -> str:
    """Return the Python of a peer's environment, which is made if it is not there."""
    if name in given:
        return given[name]
    if name == "gloo" and importlib.util.find_spec("torch") is not None:
        return sys.executable
    folder = environment.cache_folder() / "peers" / name
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_suffix(".lock")):
            if not (folder / _MARK).exists():
                _make(name, folder)
    except OSError as error:
        raise LaunchError(f"its environment cannot be made: {error}") from error
    return str(folder / "bin/python")


def _make(name: str, folder: Path) -> None:
    packages = PACKAGES[name]
    print(
        f"unisono: making an environment for {name} in {folder}: pip install {' '.join(packages)}",
        file=sys.stderr,
        flush=True,
    )
    shutil.rmtree(folder, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(folder))
    _run(str(folder / "bin/python"), *_PIP, *_MORE.get(name, ()), *packages)
    (folder / _MARK).write_text(" ".join(packages) + "\n")


def _run(*command: str) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
        raise LaunchError("; ".join(line.removeprefix("ERROR: ") for line in errors))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time make an environment."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
