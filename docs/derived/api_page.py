"""Pages of the API: names, signatures and docstrings of the public modules."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import textwrap
from typing import Any

from derived import markdown
from derived.markdown import code, table
from derived.texts import read, texts

__all__ = ["index_page", "modules", "page", "path"]


def modules() -> list[str]:
    """Return the names of the public modules."""
    return list(read()["modules"])


def path(module: str) -> str:
    """Return the file name of a module's page, without its suffix."""
    return module.replace(".", "-")


def index_page(language: str) -> str:
    """Return the list of modules."""
    text = texts("api", language)
    rows = [[text["module"], text["what"]]]
    rows += [
        [f"[`{name}`]({path(name)}.md)", about[language]]
        for name, about in read()["modules"].items()
    ]
    return markdown.document([f"# {text['title']}", text["about"], table(rows)])


def page(name: str, language: str) -> str:
    """Return the page of a module: what it is, and each of its names."""
    module = importlib.import_module(name)
    title = name.replace(".", ".<wbr>")  # a long name breaks there on a narrow screen
    blocks = [f"# {title}", _docstring(module)]
    if language != "en":
        blocks.insert(1, read()["modules"][name][language])
    for member in sorted(module.__all__, key=str.lower):
        blocks += _member(member, getattr(module, member))
    return markdown.document(filter(None, blocks))


def _member(name: str, value: Any) -> list[str]:
    title = f"## `{name}`"
    if inspect.ismodule(value):
        return [title, f"`{value.__name__}`"]
    if not callable(value):
        return [title, code(f"{name} = {value!r}")]
    blocks = [title, code(f"{_kind(value)}{name}{_signature(value)}"), _docstring(value)]
    if inspect.isclass(value) and not issubclass(value, BaseException):
        inherited = set().union(*(vars(base) for base in value.__mro__[1:]))
        for method, function in sorted(vars(value).items()):
            public = not method.startswith("_") and method not in inherited
            if public and inspect.isfunction(function):
                blocks += [f"### `{name}.{method}`", code(f"{method}{_signature(function)}")]
                blocks.append(_docstring(function))
    return blocks


def _kind(value: Any) -> str:
    return "class " if inspect.isclass(value) else ""


def _signature(value: Any) -> str:
    """Write the parameters; annotations would make the line hard to read."""
    if inspect.isclass(value) and issubclass(value, BaseException):
        bases = [base.__name__ for base in value.__bases__]
        return f"({', '.join(bases)})"
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in found.parameters.values()]
    bare = found.replace(parameters=plain, return_annotation=inspect.Signature.empty)
    return re.sub(r" at 0x[0-9a-f]+", "", str(bare))


def _docstring(value: Any) -> str:
    """Turn a docstring into Markdown: examples and drawings become blocks of code."""
    text = inspect.getdoc(value) or ""
    blocks: list[str] = []
    for piece in doctest.DocTestParser().parse(text):
        if isinstance(piece, str):
            blocks += [_paragraph(each) for each in re.split(r"\n\s*\n", piece) if each.strip()]
            continue
        lines = textwrap.indent(piece.source, "... ").splitlines()
        shown = "\n".join([f">>> {lines[0][4:]}", *lines[1:]]) + "\n" + piece.want
        if blocks and blocks[-1].startswith("```pycon"):
            blocks[-1] = blocks[-1].removesuffix("\n```") + f"\n{shown.rstrip()}\n```"
        else:
            blocks.append(code(shown.rstrip(), "pycon"))
    return "\n\n".join(blocks)


def _paragraph(text: str) -> str:
    text = text.strip("\n")
    is_drawing = "├" in text or all(line.startswith("    ") for line in text.splitlines())
    return code(textwrap.dedent(text), "text") if is_drawing else text
