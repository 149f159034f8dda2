"""What the documents show is run, and what the picture names exists."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from unisono.core import registry
from unisono.engines import gaps

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
DEADLINE = 60


def run(*command: str, cwd: Path) -> str:
    result = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def block(text: str) -> str:
    """The one block of the README that contains `text`."""
    found = [each for each in BLOCKS if text in each]
    assert len(found) == 1, f"{len(found)} blocks contain {text!r}"
    return found[0]


@pytest.mark.parametrize("text", ["init_process_group", "comm.init"])
def test_readme_dialects(text: str, tmp_path: Path) -> None:
    (tmp_path / "sum.py").write_text(block(text))
    out = run(sys.executable, "-m", "unisono", "run", "-n", "4", "sum.py", cwd=tmp_path)
    shown = re.search(r"\$ unisono run -n 4 sum.py\n(.*?)```", README, re.DOTALL)
    assert shown is not None
    assert sorted(out.splitlines()) == sorted(shown[1].splitlines())


def test_readme_spawn(tmp_path: Path) -> None:
    (tmp_path / "total.py").write_text(block("unisono.spawn"))
    assert run(sys.executable, "total.py", cwd=tmp_path) == f"{[[6] * 3] * 4}\n"


def test_readme_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_sum.py").write_text(block("pytest.mark.ranks"))
    out = run(sys.executable, "-m", "pytest", "-q", "test_sum.py", cwd=tmp_path)
    assert "1 passed" in out


def test_every_block_of_the_readme_is_run() -> None:
    assert len(BLOCKS) == 4


@pytest.mark.thorough
def test_cells_of_the_notebook_page() -> None:
    """The page is one notebook; a block of text after a cell is what the cell shows."""
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    nbformat = pytest.importorskip("nbformat")
    page = (ROOT / "docs/notebook.md").read_text()
    found = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", page, re.DOTALL)
    assert len(found) == len(re.findall(r"^```\w", page, re.MULTILINE)) - page.count("```text")
    cells = [nbformat.v4.new_code_cell(source) for source, _ in found]
    nbclient.NotebookClient(
        nbformat.v4.new_notebook(cells=cells),
        timeout=DEADLINE,
        kernel_name="python3",
        allow_errors=True,
    ).execute()
    for cell, (_, shown) in zip(cells, found, strict=True):
        if shown or any(output.output_type == "error" for output in cell.outputs):
            assert sorted(_shown(cell.outputs)) == sorted(shown.splitlines())


def _shown(outputs: list[Any]) -> list[str]:
    """The lines that a notebook shows below a cell."""
    lines: list[str] = []
    for output in outputs:
        if output.output_type == "stream":
            lines += output.text.splitlines()
        elif output.output_type == "error":
            lines += "\n".join(output.traceback).splitlines()
        else:
            lines += output.data["text/plain"].splitlines()
    return lines


def test_links_lead_somewhere() -> None:
    """Those to derived pages are checked where the site is built: tests/docs/test_site.py."""
    derived = ("collectives/", "api/", "errors.md", "sharp-edges.md")
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            elsewhere = target.startswith(("https://", *derived))
            assert elsewhere or (document.parent / target).exists(), target


def test_picture_names_what_exists() -> None:
    labels = re.findall(r'class="text"[^>]*>([^<]+)<', (ROOT / "docs/architecture.svg").read_text())
    assert len(labels) > 10
    for label in labels:
        modules = [label, f"unisono.core.{label}", f"unisono.engines.{label}"]
        native = [ROOT / "native" / f"{label}.cpp"]
        found = any(path.exists() for path in native) or any(
            importlib.util.find_spec(name) is not None
            for name in modules
            if name.startswith("unisono.")
        )
        assert found, f"the picture shows {label!r}, which is no module"


def test_gradients_are_those_of_the_mapping_table(tmp_path: Path) -> None:
    for name in ("gradient_table.py", "mindspore.md", "mindspore.zh.md"):
        shutil.copy(ROOT / "docs" / name, tmp_path)
    program = tmp_path / "gradient_table.py"
    run(sys.executable, str(program), "--check", cwd=tmp_path)
    page = tmp_path / "mindspore.zh.md"
    right = page.read_text()
    page.write_text(right.replace("反方向的同一交换", "别的"))
    wrong = subprocess.run(
        [sys.executable, program, "--check"], capture_output=True, text=True, check=False
    )
    assert (wrong.returncode, wrong.stdout) == (
        1,
        "mindspore.zh.md is out of date; run make docs\n",
    )
    run(sys.executable, str(program), cwd=tmp_path)
    assert page.read_text() == right


def test_gaps_of_engines_are_told() -> None:
    rows = (ROOT / "docs/engines.md").read_text().splitlines()
    told = [row for row in rows if row.startswith("| `") and row.count("|") == 4]
    every = [gap for name in registry.names() for gap in gaps.of(name)]
    assert len(every) > 5
    for gap in every:
        assert f"| `{gap.engine}` | {gap.what} | {gap.reason} |" in told
