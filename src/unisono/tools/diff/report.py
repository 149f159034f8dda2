"""The mapping table's knowledge about one name, as lines of a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from unisono import mapping
from unisono.mapping import Outcome, Pair, Text, UpstreamCall
from unisono.tools.diff.selection import Selection
from unisono.tools.table import table, wrap

__all__ = ["in_language", "report"]

#: Returns the text for a key of one of the vocabulary's lists, in the language of the report.
_Label = Callable[[str, str], str]


def in_language(language: str, text: Text) -> str:
    """Return a text in one of its languages."""
    return str(getattr(text, language))


def report(selection: Selection, language: str = "en", columns: int = 100) -> Iterator[str]:
    """Yield the lines that describe what a name refers to."""

    def label(list_name: str, key: str) -> str:
        return str(mapping.vocabulary()[list_name][key][language])

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
    if keys := dict.fromkeys(call.gradient for call in selection.calls if call.gradient):
        yield from heading("gradients")
        for key in keys:
            paths = [call.path for call in selection.calls if call.gradient == key]
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
            if facts := "; ".join(_versions(call, label)):
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
    pair: Pair, calls: dict[str, UpstreamCall], label: _Label, columns: int
) -> Iterator[str]:
    """Yield two calls side by side, then their parameters and their results."""
    sides = [_call_text(calls[path]) if path else "-" for path in (pair.torch, pair.mindspore)]
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
        outcomes.append((when, _outcome(result.torch, label), _outcome(result.mindspore, label)))
    yield from ("", label("heading", "results"))
    yield from table(outcomes, columns, indent="  ")


def _call_text(call: UpstreamCall) -> str:
    """Write the call as in a program, with one parameter per line."""
    if not call.parameters:
        return f"{call.path}()"
    lines = [f"{call.path}("]
    starred = False
    for argument in call.parameters:
        if argument.keyword_only and not starred:
            lines.append("    *,")
            starred = True
        default = "" if argument.default is None else f"={argument.default}"
        lines.append(f"    {argument.name}{default},")
    return "\n".join([*lines, ")"])


def _outcome(outcome: Outcome, label: _Label) -> str:
    parts = [label("returns", outcome.returns)]
    if outcome.error:
        parts = [f"{parts[0]} {outcome.error}"]
    if outcome.data or outcome.value:
        holder = outcome.data if outcome.data not in (None, "result") else ""
        value = label("value", outcome.value) if outcome.value else ""
        parts.append(": ".join(filter(None, (holder, value))))
    if outcome.shape:
        parts.append(outcome.shape)
    return "; ".join(filter(None, parts))


def _versions(call: UpstreamCall, label: _Label) -> Iterator[str]:
    if call.since:
        yield f"{label('heading', 'since')} {call.since}"
    if call.deprecated:
        yield f"{label('heading', 'deprecated')} {call.deprecated}"
    if call.successor:
        yield f"{label('heading', 'successor')} {call.successor}"
