"""The report of a port as one HTML page: each decision and its reason, beside the lines."""

from __future__ import annotations

import difflib
import html
from collections import Counter
from collections.abc import Iterator, Sequence

from unisono import mapping
from unisono.port.plan import Action
from unisono.port.port import PortedFile
from unisono.port.rules import Target

__all__ = ["page"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem;
  background: #fff; color: #1a1a1a; }
h2 { font: 600 1rem ui-monospace, monospace; margin-top: 2.5rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; table-layout: fixed; margin-bottom: 1rem; }
td, th { border: 1px solid #ccc; padding: .3rem .5rem; text-align: left; vertical-align: top;
  overflow-wrap: anywhere; }
th:first-child, td.line { width: 3.5rem; text-align: right; }
pre { margin: 0; font: 13px/1.4 ui-monospace, monospace; white-space: pre-wrap; }
.rewrite td.what { background: #e6f4ea; } .copy td.what { background: #fdf3d8; }
.leave td.what { background: #fbe4e4; }
td.old { background: #fdecec; } td.new { background: #eaf6ec; }
details { color: #555; }
@media (prefers-color-scheme: dark) {
  body { background: #161616; color: #e4e4e4; } td, th { border-color: #444; }
  .rewrite td.what { background: #16351f; } .copy td.what { background: #3b3212; }
  .leave td.what { background: #421d1d; }
  td.old { background: #3a1c1c; } td.new { background: #17321d; }
  details { color: #aaa; }
}
"""
_CLASSES = {Action.REWRITE: "rewrite", Action.COPY_BACK: "copy", Action.LEAVE: "leave"}


def page(target: Target, files: Sequence[PortedFile]) -> str:
    """Return the text of the page."""
    counts = Counter(decision.verdict for file in files for decision in file.decisions)
    numbers = ", ".join(f"{counts[verdict]} {verdict}" for verdict in _CLASSES)
    title = f"unisono port --to {target.text}"
    body = "".join(part for file in files if file.decisions for part in _file(file))
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>"
        f"<h1>{html.escape(title)}</h1><p>{numbers}</p>{body}</html>\n"
    )


def _file(file: PortedFile) -> Iterator[str]:
    yield f"<h2>{html.escape(str(file.path))}</h2>"
    yield "<table><tr><th>line</th><th>use</th><th>becomes</th><th>decision and reason</th></tr>"
    known = mapping.differences()
    for decision in file.decisions:
        texts = "".join(
            f"<li>{html.escape(known[name].text.en)}</li>" for name in decision.differences
        )
        more = f"<details><summary>differences</summary><ul>{texts}</ul></details>" if texts else ""
        yield (
            f'<tr class="{_CLASSES[decision.verdict]}">'
            f'<td class="line">{decision.reference.node.lineno}</td>'
            f"<td>{html.escape(decision.reference.path)}</td>"
            f"<td>{html.escape(decision.target or '')}</td>"
            f'<td class="what"><b>{decision.verdict}</b>: {html.escape(decision.reason)}{more}</td>'
            "</tr>"
        )
    yield "</table>"
    if file.before != file.after:
        yield "<table><tr><th>line</th><th>before</th><th>after</th></tr>"
        yield from _side_by_side(file.before.splitlines(), file.after.splitlines())
        yield "</table>"


def _side_by_side(before: list[str], after: list[str]) -> Iterator[str]:
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, first, last, new_first, new_last in matcher.get_opcodes():
        if tag != "equal":
            old, new = before[first:last], after[new_first:new_last]
            yield (
                f'<tr><td class="line">{first + 1}</td>'
                f'<td class="old"><pre>{html.escape(chr(10).join(old))}</pre></td>'
                f'<td class="new"><pre>{html.escape(chr(10).join(new))}</pre></td></tr>'
            )
