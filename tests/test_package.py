"""What is built: its metadata, its source archive, and what is said where it cannot be built."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from email import message_from_bytes
from email.message import Message
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("scikit_build_core")
pytest.importorskip("hatch_fancy_pypi_readme")

ROOT = Path(__file__).parent.parent
DEADLINE = 120


def call_backend(name: str, folder: Path) -> str:
    """Call a hook of the build backend as pip does; returns the name of what it made."""
    code = f"import sys; from scikit_build_core.build import *; print({name}(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE, check=True
    )
    return done.stdout.splitlines()[-1]


# ---- metadata ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Message:
    folder = tmp_path_factory.mktemp("metadata")
    made = call_backend("prepare_metadata_for_build_wheel", folder)
    return message_from_bytes((folder / made / "METADATA").read_bytes())


def test_links_of_the_readme_lead_somewhere_on_an_index(metadata: Message) -> None:
    text = metadata.get_payload()
    assert isinstance(text, str)
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert len(targets) == (ROOT / "README.md").read_text().count("](") > 10
    assert [target for target in targets if not target.startswith("https://")] == []
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert pictures and all(target.endswith(".svg") for target in pictures)
    assert all("/blob/" not in target for target in pictures)  # that would be a page about it


def test_links_name_files_of_the_project(metadata: Message) -> None:
    text = metadata.get_payload()
    assert isinstance(text, str)
    files = re.findall(r"unisono/unisono/(?:blob/)?main/([^)#]+)", text)
    assert len(files) > 10
    assert [name for name in files if not (ROOT / name).exists()] == []


def test_the_project_says_where_it_lives(metadata: Message) -> None:
    urls = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    assert set(urls) == {"Changelog", "Documentation", "Issues", "Source"}
    assert all(url.startswith(urls["Source"]) for url in urls.values())


# ---- the source archive --------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_source_archive_has_what_its_tests_need(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / call_backend("build_sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    folders = ("src", "native", "tests", "docs", "examples", "cmake")
    wanted = {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so"
    }
    wanted |= {"CHANGELOG.md", "CMakeLists.txt", "CONTRIBUTING.md", "LICENSE", "Makefile"}
    assert wanted - names == set()
    assert not [name for name in names if name.startswith((".ci", ".venv", "build", "dist"))]


# ---- where it cannot be built --------------------------------------------------------------------


def refusal(folder: Path, **variables: str) -> str:
    """What pip shows of our build where it fails, on one line."""
    path = folder / "bin"
    path.mkdir()
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
    command += ["--wheel-dir", str(folder), "-C", f"build-dir={folder / 'build'}", str(ROOT)]
    # CMake looks in /usr/bin even where PATH does not name it, unless it is told not to.
    environment = {**os.environ, "CMAKE_ARGS": "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF"}
    environment = {**environment, "PATH": str(path), **variables}
    if "CXX" not in variables:
        environment.pop("CXX", None)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE, check=False, env=environment
    )
    assert done.returncode != 0
    shown = done.stdout + done.stderr
    assert shown.count("CMake Error") == 1, shown
    return " ".join(shown.split())


needs_cmake = pytest.mark.skipif(find_spec("cmake") is None, reason="there is no cmake")


@needs_cmake
@pytest.mark.thorough
def test_without_a_compiler_it_says_what_to_install(tmp_path: Path) -> None:
    said = refusal(tmp_path)
    assert (
        "unisono needs a C++ compiler, and none was found: install GCC 11 or newer "
        "(on Debian and Ubuntu: apt-get install g++), or name a compiler with CXX."
    ) in said


@needs_cmake
@pytest.mark.thorough
def test_an_old_compiler_is_named(tmp_path: Path) -> None:
    real = shutil.which("g++")
    if real is None:
        pytest.skip("there is no g++")
    old = tmp_path / "old-compiler"
    # It knows C++14 only, whatever it is asked for.
    old.write_text(
        "#!/bin/bash\n"
        'given=("${@/#-std=*/-std=c++14}")\n'
        f'PATH={os.environ["PATH"]} exec {real} "${{given[@]}}"\n'
    )
    old.chmod(0o700)
    said = refusal(tmp_path, CXX=str(old))
    assert f"unisono needs a compiler for C++20, and {old} (GNU " in said
    assert "is none: install GCC 11 or newer" in said
