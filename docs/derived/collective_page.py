"""One page for each file of the mapping table: both dialects in two columns, in one language."""

from __future__ import annotations

from collections.abc import Iterator

from derived import markdown, movement, picture, running
from derived.markdown import code, columns, inline, table
from derived.texts import texts
from unisono import mapping
from unisono.mapping import Difference, Pair
from unisono.tools.diff.selection import Selection, find
from unisono.tools.diff.wording import (
    call_text,
    in_language,
    labels,
    outcome_text,
    version_facts,
)

__all__ = ["index_page", "page"]

_PROGRAM = """\
import numpy as np
import unisono
import unisono.torch.distributed as dist
from unisono.mindspore import communication as comm
from unisono.mindspore import ops
from unisono.mindspore.communication import comm_func
from unisono.mindspore.mint import distributed as mint
from unisono.mindspore.ops import communication


def example():
    rank = dist.get_rank()
    ...  # the lines of an example


unisono.spawn(example, 4)"""


def index_page(language: str) -> str:
    """Return the page that lists all others."""
    text = texts("collectives", language)
    rows = [[labels(language)("heading", "collective"), text["what"]]]
    rows += [
        [f"[{name}]({name}.md)", inline(in_language(language, entry.title))]
        for name, entry in mapping.load().items()
    ]
    return markdown.document([f"# {text['index']}", text["about"], table(rows)])


def page(name: str, language: str) -> str:
    """Return the page of one file of the table."""
    selection = find(name)
    assert selection is not None
    label = labels(language)
    text = texts("collectives", language)
    blocks = [f"# {name}", inline(in_language(language, selection.entry.title))]
    blocks += _picture(name, language)
    program = markdown.indent(f"{text['how']}\n\n{code(_PROGRAM)}")
    blocks.append(f'??? note "{text["run"]}"\n{program}')
    blocks.append(f"## {label('heading', 'calls')}")
    if name in movement.movements():
        blocks.append(text["shapes"])
    for pair in selection.pairs:
        blocks += _pair(selection, pair, language)
    blocks.append(f"## {label('heading', 'differences')}")
    for item in selection.differences:
        blocks += _difference(name, item, language)
    blocks += _faults(selection, language)
    blocks += _rest(selection, language)
    blocks.append(text["also_terminal"].format(name))
    return markdown.document(blocks)


def _picture(name: str, language: str) -> Iterator[str]:
    """Yield the picture, and the program that does what it shows."""
    text = texts("collectives", language)
    if name == "barrier":
        yield _figure(picture.draw_barrier(language), text["time"])
    elif found := movement.movements().get(name):
        sums = f" {text['sums']}" if found.has_sums else ""
        yield _figure(picture.draw(name, found, language), text["caption"] + sums)
    if shown := running.example(name):
        yield text["numbers"]
        yield _programs(shown)


def _figure(drawing: str, caption: str) -> str:
    return f'<figure class="movement">{drawing}<figcaption>{caption}</figcaption></figure>'


def _programs(pair: running.Pair) -> str:
    return columns(
        *(f"{code(example.source)}\n\n{code(example.shown, 'output')}" for example in pair.values())
    )


def _pair(selection: Selection, pair: Pair, language: str) -> Iterator[str]:
    """Yield two signatures side by side, then their parameters and results."""
    label, text = labels(language), texts("collectives", language)
    calls = {call.path: call for call in selection.entry.calls}
    yield f"### {pair.name}"
    sides = [calls[path] if path else None for path in (pair.torch, pair.mindspore)]
    yield columns(*(code(call_text(call)) if call else "—" for call in sides))
    if pair.parameters:
        rows = [["PyTorch", "MindSpore", label("heading", "role"), label("heading", "change")]]
        for row in pair.parameters:
            changes = text["semicolon"].join(label("change", change) for change in row.changes)
            names = [f"`{each}`" if each else "—" for each in (row.torch, row.mindspore)]
            rows.append([*names, label("role", row.role), changes or label("heading", "same")])
        yield f"**{label('heading', 'parameters')}**"
        yield table(rows)
    if pair.results:
        rows = [[label("heading", "when"), "PyTorch", "MindSpore"]]
        for result in pair.results:
            outcomes = [
                inline(outcome_text(each, label)) for each in (result.torch, result.mindspore)
            ]
            when = [inline(label("mode", result.mode)), label("rank", result.rank)]
            rows.append([text["comma"].join(when), *outcomes])
        yield f"**{label('heading', 'results')}**"
        yield table(rows)


def _difference(name: str, item: Difference, language: str) -> Iterator[str]:
    """Yield one difference with its examples; one of another page refers to it."""
    label, text = labels(language), texts("collectives", language)
    home, _, short = item.id.partition(".")
    anchor = markdown.anchor(item.id)
    yield f"### {label('kind', item.kind)}{text['colon']}`{short}` {{ #{anchor} }}"
    yield inline(in_language(language, item.text))
    if home != name:
        yield text["see"].format(item.id, f"{home}.md#{anchor}")
        return
    reason = inline(in_language(language, item.reason))
    yield f"*{label('heading', 'why')}*{text['colon']}{reason}"
    if shown := running.pair(item.id):
        if running.is_alone(item.id):
            yield text["alone"]
        elif running.is_recorded(item.id):
            yield text["recorded"]
        yield _programs(shown)
    else:
        yield text[str(running.without(item.id))]


def _faults(selection: Selection, language: str) -> Iterator[str]:
    """Yield what the official pages say wrongly."""
    if not selection.faults:
        return
    label, text = labels(language), texts("collectives", language)
    yield f"## {label('heading', 'faults')}"
    if selection.entry.pages:
        yield text["and"].join(f"`{each}`" for each in selection.entry.pages)
    rows = [[label("heading", key) for key in ("page", "software", "unisono")]]
    rows += [
        [
            inline(in_language(language, fault.page)),
            inline(in_language(language, fault.software)),
            label("side", fault.unisono),
        ]
        for fault in selection.faults
    ]
    yield table(rows)


def _rest(selection: Selection, language: str) -> Iterator[str]:
    """Yield gradients, other calls, versions, and what unisono lacks."""
    label, text = labels(language), texts("collectives", language)
    if selection.gradients:
        yield f"## {label('heading', 'gradients')}"
        rows = [[label("heading", "collective"), label("heading", "backward")]]
        for key, paths in selection.gradients.items():
            names = text["and"].join(f"`{path}`" for path in paths)
            rows.append([names, inline(label("gradient", key))])
        yield table(rows)
    if selection.others:
        yield f"## {label('heading', 'also')}"
        yield "\n".join(
            f"- `{call.path}{call.signature}`{text['colon']}{label('style', call.style)}"
            for call in selection.others
        )
    facts = {
        call.path: text["semicolon"].join(version_facts(call, label)) for call in selection.calls
    }
    if any(facts.values()):
        yield f"## {label('heading', 'versions')}"
        yield "\n".join(
            f"- `{path}`{text['colon']}{inline(fact)}" for path, fact in facts.items() if fact
        )
        checked = mapping.vocabulary()["checked"]
        yield (
            f"{label('heading', 'checked')} torch {checked['torch']}{text['and']}"
            f"MindSpore {checked['mindspore']}"
        )
    if selection.entry.missing:
        yield f"## {label('heading', 'missing')}"
        rows = [[label("heading", "calls"), label("heading", "why"), label("heading", "nearest")]]
        for item in selection.entry.missing:
            nearest = f"`{item.nearest}`" if item.nearest else "—"
            rows.append([f"`{item.path}`", inline(in_language(language, item.reason)), nearest])
        yield table(rows)
