"""How calls, results and versions of the mapping table are written, for terminal and pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from unisono import mapping
from unisono.mapping import Outcome, Text, UpstreamCall

__all__ = ["Label", "call_text", "in_language", "labels", "outcome_text", "version_facts"]

#: Returns the text for a key of one of the vocabulary's lists, in one language.
Label = Callable[[str, str], str]


def in_language(language: str, text: Text) -> str:
    """Return a text in one of its languages."""
    return str(getattr(text, language))


def labels(language: str) -> Label:
    """Return the function that finds the texts of the vocabulary in a language.

    >>> labels("en")("role", "op")
    'reduction operator'
    """

    def label(list_name: str, key: str) -> str:
        return str(mapping.vocabulary()[list_name][key][language])

    return label


def call_text(call: UpstreamCall) -> str:
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


def outcome_text(outcome: Outcome, label: Label) -> str:
    """Write what a call returns, which memory holds what, and its shape."""
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


def version_facts(call: UpstreamCall, label: Label) -> Iterator[str]:
    """Yield of which call it is a name, since when it exists, and what replaces it."""
    if call.alias_of:
        yield f"{label('heading', 'alias')} {call.alias_of}"
    if call.since:
        yield f"{label('heading', 'since')} {call.since}"
    if call.deprecated:
        yield f"{label('heading', 'deprecated')} {call.deprecated}"
    if call.successor:
        yield f"{label('heading', 'successor')} {call.successor}"
