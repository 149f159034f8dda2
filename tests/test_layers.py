"""The shape of the package and of its tests: imports point down and are light, `__all__` is exact.

`FLOORS` is the architecture as a table. A part may import what stands in its row, itself and
`unisono.errors`, at the top of a module, inside a function or by a name in a string.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest

import unisono

ROOT = Path(unisono.__file__).parent
TESTS = Path(__file__).parent
FRAMEWORKS = {"torch", "mindspore", "jax", "cupy", "mpi4py"}
HEAVY = FRAMEWORKS | {"libcst", "matplotlib"}

# From the ground up. The longest name counts: engines.hybrid has a row of its own, engines.threads
# has that of engines, which is also that of any engine to come.
FLOORS: dict[str, set[str]] = {
    "errors": set(),
    "core": set(),
    "core.fast": {"core", "_native"},
    # What the engines share stands below them: no engine is needed to use it.
    "engines.common": {"core"},
    "engines": {"core", "engines.common", "_native"},
    # Two levels: shared memory within a host, another engine between hosts, found by the registry.
    "engines.hybrid": {"core", "engines.common", "engines.shm", "engines.torch.rendezvous"},
    # What is on a GPU beside what is on the CPU.
    "engines.cuda": {"core", "engines.common", "engines.shm", "_native"},
    # Faces find their engine by the registry, and know none.
    "torch": {"core"},
    "torch.backend": {"core", "engines.common"},
    "mindspore": {"core"},
    "jax": {"core"},
    "mapping": {"core"},
    "port": {"core", "mapping"},
    # spawn() makes ranks that are threads by itself; all other engines are chosen by name.
    "launch": {"core", "engines.threads"},
    "notebook": {"core", "engines.threads", "launch"},
    # Commands may use anything but each other, see below.
    "tools": {
        "core",
        "engines.gaps",
        "engines.shm.tuning",
        "_native",
        "torch",
        "mindspore",
        "mapping",
        "port",
        "launch",
    },
    "pytest_plugin": {"core", "launch"},
    "arrays": {"core"},
    "cli": {"launch", "tools"},
    "__main__": {"cli"},
    "": {"launch", "arrays", "notebook", "core.encoding"},
}

# What plugs into a real framework or needs a large library, and is imported only where that is.
PLUGS = {
    "unisono.torch.backend": "torch",
    "unisono.torch.distributed.nn.autograd": "torch",
    "unisono.mindspore.integration": "mindspore",
    "unisono.jax": "jax",
    "unisono.port.kept_parts": "libcst",
    "unisono.port.rewrite": "libcst",
}

MOST_MODULES = 8  # directly in src/unisono
MOST_FILES = 15  # in any folder of src

# Classes that share a name because faces take theirs from upstream.
BORROWED = {
    "P2POp": "torch.distributed, comm_func and mindspore.ops.communication have one each",
    "ReduceOp": "MindSpore's is a set of strings, torch's is that of the core",
}

# Programs that have a package of their own among the tests, and that tests may run.
PROGRAMS = {"tests.long", "tests.torch.suite"}


def name_of(path: Path, root: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path, ROOT): path for path in sorted(ROOT.rglob("*.py"))}
TEST_MODULES = {name_of(path, TESTS): path for path in sorted(TESTS.rglob("*.py"))}
# What the top of the package offers stands above everything, so it counts like a module.
KNOWN = {*MODULES, *TEST_MODULES, "unisono._native", *(f"unisono.{x}" for x in unisono.__all__)}
KNOWN -= {"unisono.__version__"}


def floor_of(name: str) -> str:
    """The row of FLOORS that counts for a module."""
    inner = name.removeprefix("unisono").removeprefix(".")
    found = [floor for floor in FLOORS if floor and within(inner, {floor})]
    return max(found, key=len, default="")


def part_of(name: str) -> str:
    """What a module may import freely: its engine, or its floor."""
    parts = name.split(".")
    return ".".join(parts[:3] if parts[1] == "engines" else parts[:2])


def within(name: str, allowed: Iterable[str]) -> bool:
    return any(name == floor or name.startswith(f"{floor}.") for floor in allowed)


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imports(node: ast.AST, *, inside_functions: bool, for_types: bool) -> set[str]:
    """The modules that a piece of code imports; `from a import b` is `a.b` if that is a module."""
    found: set[str] = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            found |= {alias.name for alias in child.names}
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute here"
            for alias in child.names:
                inner = f"{child.module}.{alias.name}"
                found.add(inner if inner in KNOWN else child.module)
        elif (for_types or not is_type_checking(child)) and (
            inside_functions or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        ):
            found |= imports(child, inside_functions=inside_functions, for_types=for_types)
    return found


def loaded_by_name(tree: ast.Module) -> set[str]:
    """Modules and packages that a string names where something loads them."""
    loaders = {"files", "import_module", "find_spec", "__import__", "run_module"}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in loaders:
            words = [word.value for word in node.args if isinstance(word, ast.Constant)]
            found |= {word for word in words if isinstance(word, str)}
    return found


def test_the_walk_sees_the_package():
    assert {"unisono.core.dispatch", "unisono.engines.threads.engine", "unisono.errors"} <= set(
        MODULES
    )
    assert "unisono.core.buffers" in imports(
        tree_of(MODULES["unisono.core.dispatch"]), inside_functions=False, for_types=False
    )
    assert "unisono.engines" in loaded_by_name(tree_of(MODULES["unisono.engines.gaps"]))
    assert floor_of("unisono.engines.hybrid.engine") == "engines.hybrid"
    assert floor_of("unisono.engines.new.engine") == "engines"
    assert floor_of("unisono") == ""


def test_every_floor_is_there():
    """A row of the table that no module stands on has gone stale."""
    assert {floor_of(name) for name in MODULES} == set(FLOORS)


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_down(name):
    floor = floor_of(name)
    allowed = {f"unisono.{other}" for other in FLOORS[floor] | {"errors"}}
    allowed |= {part_of(name)} if floor else set()
    tree = tree_of(MODULES[name])
    found = imports(tree, inside_functions=True, for_types=True) | loaded_by_name(tree)
    # A package that a module lies in is no import: what is taken out of it is data.
    ours = {
        module for module in found if within(module, {"unisono"}) and not within(name, {module})
    }
    assert {module for module in ours if not within(module, allowed)} == set()


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("unisono.tools.")])
def test_commands_do_not_import_each_other(name):
    commands = {f"unisono.tools.{path.name}" for path in (ROOT / "tools").iterdir()} & {
        other for other, path in MODULES.items() if path.name == "__init__.py"
    }
    others = commands - {".".join(name.split(".")[:3])}
    found = imports(tree_of(MODULES[name]), inside_functions=True, for_types=True)
    assert {module for module in found if within(module, others)} == set()


@pytest.mark.parametrize("name", MODULES)
def test_frameworks_are_imported_late_or_never(name):
    # Engines and commands import a framework when they run, all others not even then.
    floor = floor_of(name).partition(".")[0]
    late = floor in ("engines", "tools")
    found = imports(tree_of(MODULES[name]), inside_functions=not late, for_types=False)
    allowed = {floor} if within(name, PLUGS) else set()
    assert {module.partition(".")[0] for module in found} & FRAMEWORKS <= allowed


LIGHT = [name for name in MODULES if floor_of(name) not in ("tools", "__main__")]


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        ([name for name in LIGHT if not within(name, PLUGS)], HEAVY),
        (
            ["unisono", "unisono.pytest_plugin"],
            {*HEAVY, "numpy", "ml_dtypes", "unisono.core.groups"},
        ),
    ],
    ids=["all but commands", "what everyone's pytest loads"],
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


# ---- sizes and names -----------------------------------------------------------------------------


def test_few_modules_stand_at_the_top():
    modules = sorted(path.name for path in ROOT.glob("*.py"))
    assert len(modules) <= MOST_MODULES, modules


def test_no_folder_is_crowded():
    folders = [ROOT, *(path for path in ROOT.rglob("*") if path.is_dir())]
    for folder in folders:
        files = [path for path in folder.iterdir() if path.is_file() and path.suffix != ".so"]
        assert folder.name == "__pycache__" or len(files) <= MOST_FILES, (folder, len(files))


def test_no_two_classes_have_one_name():
    places = defaultdict(list)
    for name, path in MODULES.items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    twice = {word: names for word, names in places.items() if len(names) > 1}
    assert {word: names for word, names in twice.items() if word not in BORROWED} == {}
    assert set(BORROWED) <= set(twice), "these need no exception any more"


# ---- tests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEST_MODULES)
def test_tests_do_not_import_each_other(name):
    """Shared code is in tests.helpers; a program among the tests has a package of its own."""
    allowed = {"tests.helpers"}
    if not within(name, {"tests.helpers"}):
        allowed |= PROGRAMS
    found = imports(tree_of(TEST_MODULES[name]), inside_functions=True, for_types=True)
    ours = {module for module in found if within(module, {"tests"})} & set(TEST_MODULES) - {"tests"}
    assert {module for module in ours if not within(module, allowed)} == set()
    assert not {module for module in ours if module.rpartition(".")[2].startswith("test_")}


# ---- what modules say of themselves --------------------------------------------------------------


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


def import_or_skip(name: str) -> ModuleType:
    """The module; what plugs into a framework that is not installed here is skipped."""
    for plug, package in PLUGS.items():
        if within(name, {plug}):
            pytest.importorskip(package)
    return importlib.import_module(name)


@pytest.mark.parametrize("name", MODULES)
def test_all_is_exact(name):
    tree = tree_of(MODULES[name])
    declared = declared_names(tree)
    assert len(set(declared)) == len(declared)
    missing = public_names(tree) - set(declared)
    assert not missing, f"{sorted(missing)} look public; add them to __all__ or an underscore"
    module = import_or_skip(name)
    extra = {word for word in declared if not hasattr(module, word)}
    assert not extra, f"__all__ names {sorted(extra)}, which {name} does not have"


@pytest.mark.parametrize("name", MODULES)
def test_public_things_have_docstrings(name):
    tree = tree_of(MODULES[name])
    if tree.body:
        assert ast.get_docstring(tree), f"{name} does not say what it is for"
    module = import_or_skip(name)
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
                # A method that overrides another may leave the description to that one.
                if described and key[0] != "_" and not inspect.getdoc(getattr(thing, key)):
                    bare.append(f"{word}.{key}")
    assert not bare
