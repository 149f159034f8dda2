"""The page of errors: what each means, what to do, and a program that gets it."""

from __future__ import annotations

import re

from derived import markdown, running
from derived.examples import errors as examples
from derived.markdown import code
from derived.texts import read, texts
from unisono import errors

__all__ = ["page"]


def page(language: str) -> str:
    """Return the page in one language."""
    text = texts("errors", language)
    tree = code(_tree(language), "text")
    blocks = [f"# {text['title']}", text["about"], tree, text["ddp"]]
    for name, told in read()["error"].items():
        kind = getattr(errors, name)
        english = str(kind.__doc__).partition("\n")[0]
        blocks += [f"## {name}", told["means"].get(language, english)]
        builtin = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins"]
        if builtin and name != "UnisonoError":
            blocks.append(text["also"].format(builtin[0]))
        blocks.append(text["do"].format(told["do"][language]))
        program = getattr(examples, re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(), None)
        if program:
            shown = running.run(program)
            blocks += [text["prints"], code(shown.source), code(shown.shown, "output")]
    return markdown.document(blocks)


def _tree(language: str) -> str:
    """Return the drawing of the errors, with what each means."""
    english = str(errors.__doc__).split("\n\n")[1]
    if language == "en":
        return english

    def translate(found: re.Match[str]) -> str:
        means = str(read()["error"][found["name"]]["means"][language])
        return found["begin"] + means.replace("`", "")  # a drawing has no Markdown

    line = r"^(?P<begin>\W*(?P<name>\w+)(?:\(\w+\))? {2,}).+$"
    return re.sub(line, translate, english, flags=re.MULTILINE)
