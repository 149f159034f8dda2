"""Run by Python before a script that was started with `--patch`, as `unisono.launch.patch` says.

The script itself is started as without a patch, so its `sys.argv`, `sys.path`, `__main__` and
tracebacks are those of a plain Python.
"""

from __future__ import annotations

import os
import sys
import traceback
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

__all__: list[str] = []


def _prepare() -> None:
    from unisono.launch.patch import patch_when_imported

    for framework in os.environ.get("UNISONO_PATCH", "").split():
        patch_when_imported(framework)


def _run_the_one_behind() -> None:
    """Run the sitecustomize that this one hides, if the environment has one."""
    here = Path(__file__).parent
    sys.path[:] = [entry for entry in sys.path if Path(entry) != here]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules.update(sitecustomize=module)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    try:
        _prepare()
    except BaseException:  # Python would go on without the patch
        traceback.print_exc()
        os._exit(2)
    _run_the_one_behind()
