"""The mapping table's knowledge about one name, as lines of a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from unisono import mapping
from unisono.mapping import Pair, Text, UpstreamCall
from unisono.tools.diff.selection import Selection
from unisono.tools.diff.wording import (
    Label,
    call_text,
    in_language,
    labels,
    outcome_text,
    version_facts,
)
from unisono.tools.table import table, wrap

__all__ = ["report"]


def report(selection: Selection, language: str = "en", columns: int = 100) -> Iterator[str]:
    """Yield the lines that describe what a name refers to."""
    label = labels(language)

    def lines(text: str, indent: int) -> Iterator[str]:
        yield from (" " * indent + line for line in wrap(text, columns - indent))

    def labelled(key: str, text: Text) -> Iterator[str]:
        yield from lines(f"{label('heading', key)}: {in_language(language, text)}", 4)

    def heading(key: str) -> Iterator[str]:
        yield from ("", label("heading", key))

    if selection.missing:
        yield from lines(f"{selection.missing.path}: {label('heading', 'missing')}", 0)
        yield from lines(in_language(language, selection.missing.reason), 4)
        if selection.missing.nearest:
            yield from lines(f"{label('heading', 'nearest')}: {selection.missing.nearest}", 4)
        return
    if selection.name:
        yield from (*lines(selection.name.path, 0), "")
    yield from lines(f"{selection.entry.name}: {in_language(language, selection.entry.title)}", 0)
    calls = {call.path: call for call in selection.entry.calls}
    for pair in selection.pairs:
        yield from _show_pair(pair, calls, label, columns)
    if selection.gradients:
        yield from heading("gradients")
        for key, paths in selection.gradients.items():
            yield from lines(", ".join(paths), 2)
            yield from lines(label("gradient", key), 4)
    yield from heading("differences")
    for item in selection.differences:
        yield from lines(f"{item.id} ({label('kind', item.kind)})", 2)
        yield from lines(in_language(language, item.text), 4)
        yield from labelled("why", item.reason)
    if selection.faults:
        yield from heading("faults")
        yield from lines(", ".join(selection.entry.pages), 2)
        for fault in selection.faults:
            number = f" ({label('heading', 'fault')} {fault.number})" if fault.number else ""
            yield from lines(fault.id + number, 2)
            yield from labelled("page", fault.page)
            yield from labelled("software", fault.software)
            yield from lines(f"{label('heading', 'unisono')}: {label('side', fault.unisono)}", 4)
    if selection.others:
        yield from heading("also")
        rows = [
            (call.path + call.signature, label("style", call.style)) for call in selection.others
        ]
        yield from table(rows, columns, indent="  ")
    if selection.calls:
        yield from heading("versions")
        for call in selection.calls:
            if facts := "; ".join(version_facts(call, label)):
                yield from lines(f"{call.path}: {facts}", 2)
        checked = mapping.vocabulary()["checked"]
        releases = f"torch {checked['torch']}, MindSpore {checked['mindspore']}"
        yield from lines(f"{label('heading', 'checked')} {releases}", 2)
    if selection.whole and selection.entry.missing:
        yield from heading("missing")
        for lacking in selection.entry.missing:
            near = f" ({label('heading', 'nearest')}: {lacking.nearest})" if lacking.nearest else ""
            yield from lines(lacking.path + near, 2)
            yield from lines(in_language(language, lacking.reason), 4)


def _show_pair(
    pair: Pair, calls: dict[str, UpstreamCall], label: Label, columns: int
) -> Iterator[str]:
    """Yield two calls side by side, then their parameters and their results."""
    sides = [call_text(calls[path]) if path else "-" for path in (pair.torch, pair.mindspore)]
    yield ""
    yield from table([("torch", "MindSpore"), sides], columns, between=" | ")
    if pair.parameters:
        rows = [("torch", "MindSpore", label("heading", "role"), label("heading", "change"))]
        for row in pair.parameters:
            changes = [label("change", change) for change in row.changes]
            change = "; ".join(changes) or label("heading", "same")
            rows.append((row.torch or "-", row.mindspore or "-", label("role", row.role), change))
        yield from ("", label("heading", "parameters"))
        yield from table(rows, columns, indent="  ")
    outcomes = [(label("heading", "when"), "torch", "MindSpore")]
    for result in pair.results:
        when = f"{label('mode', result.mode)}, {label('rank', result.rank)}"
        outcomes.append(
            (when, outcome_text(result.torch, label), outcome_text(result.mindspore, label))
        )
    yield from ("", label("heading", "results"))
    yield from table(outcomes, columns, indent="  ")
