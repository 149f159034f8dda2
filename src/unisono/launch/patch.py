"""Put unisono under a framework, for scripts that stay as they are.

`unisono.patch("torch")` does it in this process. `unisono run --patch torch` and `unisono patch
torch COMMAND` do it in every Python that they start, by two variables: UNISONO_PATCH names the
framework, and PYTHONPATH gets a folder with a `sitecustomize`, which Python runs before any script.
The framework is patched when the script imports it, not earlier: a script may set variables that
the framework reads on import.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unisono.errors import ArgumentError, LaunchError

if TYPE_CHECKING:
    import argparse

__all__ = [
    "check_patch",
    "configure",
    "main",
    "patch",
    "patch_variables",
    "patch_when_imported",
]

#: The frameworks, and our modules that patch them: faces are not imported before they are needed.
_PATCHES = {"mindspore": "unisono.mindspore._patch", "torch": "unisono.torch._patch"}
#: What is then true of each, for the first line of a job.
_EFFECTS = {
    "mindspore": "its communication uses unisono",
    "torch": "its gloo groups are unisono's",
}
#: Asked of the Python that will run the script, which may be another one.
_QUESTION = """
import sys
from importlib import metadata, util
for name in ("unisono", sys.argv[1]):
    if util.find_spec(name) is None:
        sys.exit(f"{name} is not installed")
try:
    print(metadata.version(sys.argv[1]))
except metadata.PackageNotFoundError:
    print("of unknown version")
"""


def patch(framework: str) -> None:
    """Make `framework`, here and now, use unisono: "mindspore" or "torch".

    MindSpore uses it for all its communication, torch for groups that are asked for as "gloo", or
    for the CPU without a backend. What modules have imported from the framework before is replaced
    as well. A second call does nothing.

    >>> import torch
    >>> unisono.patch("torch")
    >>> address = "tcp://127.0.0.1:0"
    >>> torch.distributed.init_process_group("gloo", address, rank=0, world_size=1)
    >>> type(torch.distributed.group.WORLD).__module__
    'unisono.torch.backend.process_group'
    >>> torch.distributed.destroy_process_group()
    """
    _module_for(framework).patch()


def patch_when_imported(framework: str) -> None:
    """Do the same once the framework is imported, without importing it."""
    _module_for(framework).patch_when_imported()


def patch_variables(framework: str) -> dict[str, str]:
    """Give the variables with which a Python, and those that it starts, patch the framework."""
    folder = str(Path(__file__).parent / "before_script")
    paths = [folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {"UNISONO_PATCH": framework, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def check_patch(framework: str, python: str) -> str:
    """Refuse what `python` cannot patch; return the framework, its version and what is then so."""
    import subprocess  # `import unisono` does not need it

    _module_for(framework)
    question = [python, "-c", _QUESTION, framework]
    asked = subprocess.run(question, capture_output=True, text=True, errors="replace", check=False)
    if asked.returncode != 0:
        reason = asked.stderr.strip().rpartition("\n")[2]
        raise LaunchError(f"cannot patch {framework}: {reason} in {python}")
    return f"patched {framework} {asked.stdout.strip()}: {_EFFECTS[framework]}"


def _module_for(framework: str) -> Any:
    if framework not in _PATCHES:
        raise ArgumentError(f"cannot patch {framework!r}; there are {', '.join(_PATCHES)}")
    return importlib.import_module(_PATCHES[framework])


# ---- the command ---------------------------------------------------------------------------------


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `unisono patch`; the command's own options are not read."""
    parser.usage = "unisono patch FRAMEWORK command ..."
    parser.epilog = (
        "For launchers other than unisono's own, as in "
        "`unisono patch mindspore msrun --worker_num=2 --local_worker_num=2 train.py` or "
        "`unisono patch torch torchrun --nproc-per-node=2 train.py`."
    )
    parser.add_argument("FRAMEWORK", help="what to put unisono under: mindspore or torch")
    parser.add_argument("command", nargs="...", help="a command, and its arguments")


def main(arguments: argparse.Namespace) -> int:
    """Become the command, with variables that every Python of it will read."""
    command = arguments.command
    if not command:
        raise ArgumentError("nothing to run; name a command, such as msrun, torchrun or python")
    found = check_patch(arguments.FRAMEWORK, sys.executable)
    print(f"unisono: {found}", file=sys.stderr, flush=True)
    os.environ.update(patch_variables(arguments.FRAMEWORK))
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise LaunchError(f"cannot start {command[0]!r}: {error.strerror}") from error
