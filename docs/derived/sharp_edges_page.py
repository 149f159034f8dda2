"""The page of sharp edges: wrong and right beside each other, with what both print."""

from __future__ import annotations

from derived import markdown, running
from derived.examples import sharp_edges
from derived.markdown import code
from derived.texts import read, texts

__all__ = ["page"]


def page(language: str) -> str:
    """Return the page in one language."""
    text = texts("sharp_edges", language)
    blocks = [f"# {text['title']}", text["about"]]
    titles = [f"{mark} {side}" for mark, side in zip("✗✓", text["sides"], strict=True)]
    for name in read()["edge"]:
        edge = texts(f"edge.{name}", language)
        blocks += [f"## {edge['title']}", edge["text"]]
        shown = [running.run(getattr(sharp_edges, f"{name}_{side}")) for side in ("wrong", "right")]
        programs = [f"{code(each.source)}\n\n{code(each.shown, 'output')}" for each in shown]
        blocks.append(markdown.columns(*programs, titles=titles))
    return markdown.document(blocks)
