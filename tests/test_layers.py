"""The shape of the package: imports point down and are light, `__all__` is exact."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import unisono

ROOT = Path(unisono.__file__).parent
FRAMEWORKS = {"torch", "mindspore", "jax", "cupy", "mpi4py"}
HEAVY = FRAMEWORKS | {"libcst", "matplotlib"}

# What each floor may import of unisono, at the top of a module or inside a function.
FLOORS = {
    "core": {"unisono.core", "unisono.errors"},
    "engines": {"unisono.core", "unisono.errors", "unisono.engines", "unisono._native"},
    "torch": {"unisono.core", "unisono.errors", "unisono.torch"},
    "mindspore": {"unisono.core", "unisono.errors", "unisono.mindspore"},
}

# What plugs into a real framework, and is imported only where that is.
PLUGS = {"unisono.torch.backend"}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}
FLOOR_MODULES = [name for name in MODULES if name.count(".") and name.split(".")[1] in FLOORS]


def tree_of(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text())


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imports(node: ast.AST, *, inside_functions: bool, for_types: bool) -> set[str]:
    """The modules that a piece of code imports; `from a import b` counts as `a` and `a.b`."""
    found: set[str] = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            found |= {alias.name for alias in child.names}
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute here"
            found.add(child.module)
            found |= {f"{child.module}.{alias.name}" for alias in child.names}
        elif (for_types or not is_type_checking(child)) and (
            inside_functions or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        ):
            found |= imports(child, inside_functions=inside_functions, for_types=for_types)
    return found


def within(name: str, allowed: set[str]) -> bool:
    return any(name == floor or name.startswith(f"{floor}.") for floor in allowed)


def test_the_walk_sees_the_package():
    assert {"unisono.core.dispatch", "unisono.engines.threads.engine", "unisono.errors"} <= set(
        MODULES
    )
    assert "unisono.core.buffers" in imports(
        tree_of("unisono.core.dispatch"), inside_functions=False, for_types=False
    )


@pytest.mark.parametrize("name", FLOOR_MODULES)
def test_imports_point_down(name):
    allowed = FLOORS[name.split(".")[1]]
    found = imports(tree_of(name), inside_functions=True, for_types=True)
    ours = {module for module in found if within(module, {"unisono"}) and module != "unisono"}
    # `from unisono import errors` names a module of ours as well.
    assert {module for module in ours if not within(module, allowed)} == set()


@pytest.mark.parametrize("name", FLOOR_MODULES)
def test_frameworks_are_imported_late_or_never(name):
    floor = name.split(".")[1]
    # Engines import their framework when they run, the core and the faces not even then.
    late = floor == "engines"
    found = imports(tree_of(name), inside_functions=not late, for_types=False)
    allowed = {floor} if within(name, PLUGS) else set()
    assert {module.partition(".")[0] for module in found} & FRAMEWORKS <= allowed


LIGHT = [name for name in MODULES if name == "unisono" or name.split(".")[1] in FLOORS]


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        ([name for name in LIGHT if not within(name, PLUGS)], HEAVY),
        (
            ["unisono", "unisono.pytest_plugin"],
            {*HEAVY, "numpy", "ml_dtypes", "unisono.core.groups"},
        ),
    ],
    ids=["core, engines and faces", "what everyone's pytest loads"],
)
def test_imports_are_light(modules, unwanted):
    code = f"""
import importlib, sys
for name in {modules!r}:
    importlib.import_module(name)
    heavy = {unwanted!r} & set(sys.modules)
    assert not heavy, f"importing {{name}} brings {{sorted(heavy)}}"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def public_names(tree: ast.Module) -> set[str]:
    """Names that a module defines at its top and that do not start with an underscore."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return {name for name in found if not name.startswith("_")}


def declared_names(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


@pytest.mark.parametrize("name", MODULES)
def test_all_is_exact(name):
    tree = tree_of(name)
    declared = declared_names(tree)
    assert len(set(declared)) == len(declared)
    missing = public_names(tree) - set(declared)
    assert not missing, f"{sorted(missing)} look public; add them to __all__ or an underscore"
    module = importlib.import_module(name)
    extra = {word for word in declared if not hasattr(module, word)}
    assert not extra, f"__all__ names {sorted(extra)}, which {name} does not have"


@pytest.mark.parametrize("name", MODULES)
def test_public_things_have_docstrings(name):
    tree = tree_of(name)
    if tree.body:
        assert ast.get_docstring(tree), f"{name} does not say what it is for"
    module = importlib.import_module(name)
    bare = []
    for word in public_names(tree):
        thing = getattr(module, word)
        if inspect.isfunction(thing) or inspect.isclass(thing):
            bare += [word] if not inspect.getdoc(thing) else []
        if inspect.isclass(thing):
            for key, member in vars(thing).items():
                described = inspect.isfunction(member) or isinstance(
                    member, property | classmethod | staticmethod
                )
                # A method that overrides another may leave the words to the one above it.
                if described and key[0] != "_" and not inspect.getdoc(getattr(thing, key)):
                    bare.append(f"{word}.{key}")
    assert not bare
