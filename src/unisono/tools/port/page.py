"""The report of a port as one HTML page: each decision and its reason, beside the lines."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from unisono.port.decision import explain
from unisono.port.plan import Action, Decision
from unisono.port.port import PortedFile
from unisono.port.program import Unreadable
from unisono.port.rules import Target
from unisono.tools.formatting import plain, plural
from unisono.tools.html_page import fill_page, page_part
from unisono.tools.port.hunks import Hunk, find_hunks

__all__ = ["page"]

_PACKAGE = "unisono.tools.port"
#: The class of a verdict, and what it means.
_VERDICTS = {
    Action.REWRITE: ("rewrite", "rewritten for the other dialect"),
    Action.COPY_BACK: (
        "copy",
        "rewritten, with a copy into the tensor that others may have",
    ),
    Action.LEAVE: ("leave", "left as it is, with a comment that says why: it needs a person"),
}


def page(target: Target, files: Sequence[PortedFile], unreadable: Sequence[Unreadable] = ()) -> str:
    """Return the text of the page. What comes from the program is text in it, never markup."""
    shown = [file for file in files if file.decisions or file.before != file.after]
    return fill_page(
        _PACKAGE,
        {
            "title": _text(f"unisono port --to {target.text}"),
            "style": page_part(_PACKAGE, "page.css"),
            "script": page_part(_PACKAGE, "page.js"),
            "summary": "".join(_summary(shown, unreadable)),
            "filter": "".join(_filter(shown)),
            "files": "".join(
                part for number, file in enumerate(shown) for part in _file(number, file)
            ),
        },
    )


def _text(text: str) -> str:
    """Escape a text; what no page may hold, as a control character, is a question mark."""
    return html.escape(plain(text.replace("\t", "    ")))


def _counts(files: Iterable[PortedFile]) -> Counter[str]:
    return Counter(decision.verdict for file in files for decision in file.decisions)


# ---- the head of the page ------------------------------------------------------------------------


def _summary(files: Sequence[PortedFile], unreadable: Sequence[Unreadable]) -> Iterator[str]:
    """What there is: files, those that cannot be read, and a row for each."""
    changed = sum(file.before != file.after for file in files)
    counts = _counts(files)
    yield (
        f"<p>{plural(sum(counts.values()), 'use')} in {plural(len(files), 'file')}; "
        f"{plural(changed, 'file')} to change; {counts[Action.LEAVE]} left for a person; "
        f"{plural(len(unreadable), 'file')} not read.</p>"
    )
    if unreadable:
        yield '<section class="unreadable"><h2>Not read</h2><ul>'
        for item in unreadable:
            place = _text(f"{item.path}:{item.line}")
            yield f"<li><code>{place}</code>: {_text(item.reason)}</li>"
        yield "</ul></section>"
    if files:
        yield '<section><h2>Files</h2><div class="scroll"><table><thead><tr><th>file</th>'
        yield "".join(f"<th>{verdict}</th>" for verdict in _VERDICTS)
        yield "<th>changed</th></tr></thead><tbody>"
        for number, file in enumerate(files):
            own = _counts([file])
            cells = "".join(f"<td>{own[verdict] or ''}</td>" for verdict in _VERDICTS)
            yield f'<tr><td><a href="#file-{number}">{_text(str(file.path))}</a></td>{cells}'
            yield f"<td>{'yes' if file.before != file.after else 'no'}</td></tr>"
        yield "</tbody></table></div></section>"


def _filter(files: Sequence[PortedFile]) -> Iterator[str]:
    counts = _counts(files)
    for verdict, (kind, meaning) in _VERDICTS.items():
        yield (
            f'<label class="{kind}"><input type="checkbox" value="{kind}" checked> '
            f"<b>{counts[verdict]} {verdict}</b> <span>{meaning}</span></label>"
        )


# ---- files ---------------------------------------------------------------------------------------


def _file(number: int, file: PortedFile) -> Iterator[str]:
    yield f'<section class="file" id="file-{number}"><h2>{_text(str(file.path))}</h2>'
    for hunk in find_hunks(file):
        yield from _hunk(hunk)
    yield "</section>"


def _hunk(hunk: Hunk) -> Iterator[str]:
    """Lines before and after beside each other, below what was decided on them."""
    yield '<article class="hunk">'
    if hunk.decisions:
        yield from map(_decision, hunk.decisions)
    else:
        yield "<p>goes with the decisions: imports, and statements that come later</p>"
    yield '<div class="sides">'
    yield _side("before", hunk.before_line, hunk.before)
    if hunk.before == hunk.after:
        yield '<div class="side same"><h3>after</h3><p>the same</p></div>'
    else:
        yield _side("after", hunk.after_line, hunk.after)
    yield "</div></article>"


def _decision(decision: Decision) -> str:
    kind = _VERDICTS[decision.verdict][0]
    target = f" → <code>{_text(decision.target)}</code>" if decision.target else ""
    texts = "".join(f"<li>{_text(text)}</li>" for text in explain(decision))
    more = f"<details><summary>differences</summary><ul>{texts}</ul></details>" if texts else ""
    return (
        f'<div class="decision {kind}" data-verdict="{kind}">'
        f'<p><b class="verdict">{decision.verdict}</b> line {decision.reference.node.lineno}: '
        f"<code>{_text(decision.reference.path)}</code>{target}</p>"
        f"<p>{_text(decision.reason)}</p>{more}</div>"
    )


def _side(title: str, first: int, lines: Sequence[str]) -> str:
    rows = "".join(
        f'<span class="row" data-line="{number}">{_text(line)}</span>\n'
        for number, line in enumerate(lines, first)
    )
    return f'<div class="side {title}"><h3>{title}</h3><pre tabindex="0">{rows}</pre></div>'
