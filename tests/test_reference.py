"""The reference, in both languages, has every variable and every option, and no others."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from unisono import cli
from unisono.notebook import magics

ROOT = Path(__file__).parent.parent
PAGES = {
    language: (ROOT / f"docs/reference{suffix}.md").read_text(encoding="utf-8")
    for language, suffix in {"en": "", "zh": ".zh"}.items()
}
in_both_languages = pytest.mark.parametrize("language", PAGES)

#: A variable has an underscore in its name, with one exception. OMPI_MCA_ess_base_jobid is one too.
NAME = re.compile(r"RANK|[A-Z][A-Z0-9]*(_[A-Za-z0-9]+)+")
#: What looks like a variable in a module that reads some, and is something else.
OTHER_TEXTS = {
    "MS_SCHED", "MS_WORKER",  # values of MS_ROLE
    "CUDA_VISIBLE_DEVICES",  # a variable that is ignored
    "C_DOUBLE_COMPLEX", "C_FLOAT_COMPLEX", "UINT16_T",  # types of MPI
}  # fmt: skip
#: What the standard library reads for us.
BY_PYTHON = {"tempfile": {"TMPDIR"}, "get_terminal_size": {"COLUMNS", "LINES"}}


# ---- variables -----------------------------------------------------------------------------------


def written(tree: ast.AST) -> Iterator[ast.AST]:
    """Texts that name a variable to set it, and those of `__all__`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            yield from filter(None, node.keys)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            yield node.slice
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            yield from ast.walk(node)


def read_by_python(path: Path) -> set[str]:
    text = path.read_text()
    found = {name for word, names in BY_PYTHON.items() if word in text for name in names}
    if re.search(r"\benviron\b|\bgetenv\b", text):
        tree = ast.parse(text)
        ignored = set(map(id, written(tree)))
        texts = {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and id(node) not in ignored
        }
        found |= {text for text in texts if isinstance(text, str) and NAME.fullmatch(text)}
    return found - OTHER_TEXTS


def read_by_native(path: Path) -> set[str]:
    return set(re.findall(r'getenv\("(\w+)"\)', path.read_text()))


def variables_of_the_code() -> set[str]:
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        found |= read_by_python(path)
    for path in (ROOT / "native").rglob("*.[ch]pp"):
        found |= read_by_native(path)
    return found


def first_cells(text: str, column: int = 0) -> list[str]:
    """What is in backticks in one column of all tables of a text."""
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row[column])]


def parts_of_the_page(language: str) -> list[str]:
    """Return variables, commands and notebooks: headings differ by language, order does not."""
    return re.split(r"\n## .+\n", PAGES[language])[1:]


def variables_of_the_page(language: str) -> list[str]:
    text = parts_of_the_page(language)[0]
    settings, job, launchers, system = re.split(r"\n### .+\n", text)[1:]
    return first_cells(settings + job) + first_cells(launchers, 1) + first_cells(system)


@in_both_languages
def test_the_page_has_the_variables_that_are_read(language: str) -> None:
    found = variables_of_the_page(language)
    assert len(set(found)) == len(found)
    assert set(found) == variables_of_the_code()


def test_the_scan_sees_every_way_to_read_a_variable(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        "import os, tempfile\n"
        "NAMES = ('IN_A_TUPLE', 'no name', 'NONAME')\n"
        "os.environ.get('BY_GET'); os.environ['BY_INDEX']; 'BY_IN' in os.environ\n"
        "os.environ['SET_ONLY'] = '1'; start(env={**os.environ, 'FOR_A_CHILD': '1'})\n"
    )
    found = {"IN_A_TUPLE", "BY_GET", "BY_INDEX", "BY_IN", "TMPDIR"}
    assert read_by_python(module) == found
    module.write_text("NAME = 'NOT_FOR_US'\n")
    assert read_by_python(module) == set()


def test_variables_of_the_tests_are_not_on_the_page() -> None:
    assert not any("UNISONO_TEST_ENGINES" in page for page in PAGES.values())


# ---- options -------------------------------------------------------------------------------------


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Options and arguments as the page writes them: with the name of their value."""
    found = set()
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        value = f" {action.metavar}" if action.metavar else ""
        names = [name + value for name in action.option_strings]
        found.update(names or [str(action.metavar or action.dest)])
    return found


def options_on_the_page(command: str, language: str) -> list[str]:
    sections = re.split(r"\n### `unisono ?(\w*)`\n", parts_of_the_page(language)[1])
    texts = dict(zip(sections[1::2], sections[2::2], strict=True))
    return first_cells(texts[command])


@in_both_languages
@pytest.mark.parametrize("command", cli._COMMANDS)
def test_the_page_has_the_options_of_a_command(command: str, language: str) -> None:
    module = importlib.import_module(f"unisono.{cli._COMMANDS[command][0]}")
    parser = argparse.ArgumentParser()
    module.configure(parser)
    found = options_on_the_page(command, language)
    assert len(set(found)) == len(found)
    assert set(found) == options_of(parser)


@in_both_languages
def test_the_page_has_the_options_of_the_magic(language: str) -> None:
    found = first_cells(parts_of_the_page(language)[2])
    assert len(set(found)) == len(found)
    assert set(found) == options_of(magics._Parser())


@in_both_languages
def test_the_page_has_the_commands(language: str, capsys: pytest.CaptureFixture[str]) -> None:
    named = re.findall(r"\n### `unisono (\w+)`\n", parts_of_the_page(language)[1])
    assert named == list(cli._COMMANDS)
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    shown = set(re.findall(r"^  .*?(--\w+)", capsys.readouterr().out, re.MULTILINE))
    assert shown - {"--help"} == set(options_on_the_page("", language))
