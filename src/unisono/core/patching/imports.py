"""Do something when a framework has been imported, without importing it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["after_import"]


def after_import(framework: str, then: Callable[[], object]) -> None:
    """Call `then` when the framework has been imported: now, or at the end of its import."""
    if framework in sys.modules and not _is_importing(framework):
        then()
    else:
        sys.meta_path.insert(0, _AfterImport(framework, then))


def _is_importing(framework: str) -> bool:
    """Whether the framework's own import is running, so that its modules are not complete."""
    return bool(getattr(sys.modules[framework].__spec__, "_initializing", False))


class _AfterImport(MetaPathFinder):
    """Finds a module as Python would, and calls a function when it has been imported."""

    def __init__(self, name: str, then: Callable[[], object]) -> None:
        self._name = name
        self._then = then
        self._is_asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own spec, with a loader that calls the function at the end."""
        if fullname != self._name or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                sys.meta_path.remove(self)
                self._then()

            setattr(spec.loader, "exec_module", execute_and_call)  # noqa: B010
        return spec
