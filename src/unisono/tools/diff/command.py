"""`unisono diff`: one collective in both dialects, side by side, from the mapping table."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

from unisono import mapping
from unisono.mapping import Call, Difference, Entry, Outcome, Pair, Text
from unisono.tools.table import table, wrap

__all__ = ["View", "configure", "find", "main", "names", "show"]

#: Looks a word up: the list, then the key.
_Word = Callable[[str, str], str]

#: Nobody reads lines longer than this.
_WIDEST = 120
_NARROWEST = 40


@dataclasses.dataclass(frozen=True)
class View:
    """What one name asks for: an entry, and the pairs of it that the name is about."""

    entry: Entry
    pairs: tuple[Pair, ...]
    missing: mapping.Missing | None = None
    name: mapping.Name | None = None

    @property
    def whole(self) -> bool:
        """Tell whether the name stands for the whole entry."""
        return len(self.pairs) == len(self.entry.pairs)

    @property
    def differences(self) -> list[Difference]:
        """Return what belongs to these pairs: own texts first, then those that all share."""
        shown = {pair.name for pair in self.pairs}
        referred = set(_referred(self.pairs))
        if self.name:
            referred.add(self.name.difference)
        own = [
            item
            for item in self.entry.differences
            if shown & set(item.pairs) or item.id in referred or (self.whole and not item.pairs)
        ]
        rest = [
            item
            for item in mapping.differences().values()
            if item.id in referred and item not in own
        ]
        return own + rest

    @property
    def faults(self) -> list[mapping.Fault]:
        """Return where the official pages are wrong about these pairs."""
        if not self.pairs:
            return []
        shown = {pair.name for pair in self.pairs}
        return [item for item in self.entry.faults if not item.pairs or shown & set(item.pairs)]

    @property
    def others(self) -> list[Call]:
        """Return the calls beside the pairs: successors, primitives, further modules."""
        if not self.pairs:
            return []
        shown = {path for pair in self.pairs for path in (pair.torch, pair.mindspore)}
        words = {word for pair in self.pairs for word in _last_words(pair)}
        return [
            call
            for call in self.entry.calls
            if call.path not in shown and (self.whole or _akin(call.name, words))
        ]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `unisono diff`."""
    parser.add_argument(
        "name", nargs="?", help="a collective, in the words of either framework; all if left out"
    )
    parser.add_argument("--lang", choices=mapping.LANGUAGES, default="en", help="language")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")


def main(arguments: argparse.Namespace) -> int:
    """Print one entry, or the list of all; return 2 for a name that is in neither dialect."""
    columns = max(_NARROWEST, min(shutil.get_terminal_size((100, 24)).columns, _WIDEST))
    if arguments.name is None:
        entries = mapping.load().values()
        if arguments.json:
            _print_json({entry.name: dataclasses.asdict(entry) for entry in entries})
        else:
            rows = [(entry.name, _in(arguments.lang, entry.title)) for entry in entries]
            print("\n".join(table(rows, columns, indent="")))
        return 0
    view = find(arguments.name)
    if view is None:
        close = difflib.get_close_matches(arguments.name.rpartition(".")[2], names(), 3, 0.5)
        hint = f"; did you mean {' or '.join(close)}?" if close else "; see: unisono diff"
        print(f"unisono: no call is named {arguments.name!r}{hint}", file=sys.stderr)
        return 2
    if arguments.json:
        answer = dataclasses.asdict(view.entry)
        answer["shared"] = [
            dataclasses.asdict(item)
            for item in view.differences
            if item not in view.entry.differences
        ]
        _print_json(answer)
    else:
        print("\n".join(show(view, arguments.lang, columns)))
    return 0


def names() -> list[str]:
    """List what `unisono diff` answers to, without the paths in front."""
    found = dict.fromkeys(mapping.load())
    for entry in mapping.load().values():
        found.update(dict.fromkeys(call.name for call in entry.calls))
        found.update(dict.fromkeys(named.path.rpartition(".")[2] for named in entry.names))
        found.update(dict.fromkeys(item.path.rpartition(".")[2] for item in entry.missing))
    return list(found)


def find(name: str) -> View | None:
    """Find an entry by its own name or by any upstream name, with as much path as one likes."""
    path = name.removeprefix("unisono.")
    if path.startswith("dist."):
        path = f"torch.distributed.{path.removeprefix('dist.')}"
    entries = mapping.load()
    if path in entries:
        return View(entries[path], entries[path].pairs)
    for entry in entries.values():
        words = {call.name for call in entry.calls if f".{call.path}".endswith(f".{path}")}
        if words:
            pairs = tuple(pair for pair in entry.pairs if words & _last_words(pair))
            akin = tuple(
                pair
                for pair in entry.pairs
                if any(_akin(word, _last_words(pair)) for word in words)
            )
            return View(entry, pairs or akin or entry.pairs)
        for named in entry.names:
            if f".{named.path}".endswith(f".{path}"):
                return View(entry, (), name=named)
        for item in entry.missing:
            if f".{item.path}".endswith(f".{path}"):
                return View(entry, (), item)
    return None


def _last_words(pair: Pair) -> set[str]:
    return {path.rpartition(".")[2] for path in (pair.torch, pair.mindspore) if path}


def _akin(name: str, words: set[str]) -> bool:
    """Tell whether a name is about the same as others: AllReduce and all_reduce_coalesced are."""
    plain = name.replace("_", "").lower()
    others = [word.replace("_", "").lower() for word in words]
    return any(plain in other or other in plain for other in others)


def _referred(pairs: tuple[Pair, ...]) -> Iterator[str]:
    """The differences that rows name, or that the words in them stand for."""
    words = mapping.vocabulary()
    for pair in pairs:
        for row in pair.parameters:
            given = [row.difference, words["role"][row.role].get("difference")]
            given += [words["change"][change].get("difference") for change in row.changes]
            yield from filter(None, given)
        yield from filter(None, (row.difference for row in pair.results))


def _print_json(answer: dict[str, Any]) -> None:
    print(json.dumps(answer, indent=2, ensure_ascii=False))


# ---- for people ----------------------------------------------------------------------------------


def _in(language: str, text: Text) -> str:
    return str(getattr(text, language))


def show(view: View, language: str = "en", columns: int = 100) -> Iterator[str]:
    """Lay out what a name asks for, line by line."""

    def word(list_name: str, key: str) -> str:
        return str(mapping.vocabulary()[list_name][key][language])

    def lines(text: str, indent: int) -> Iterator[str]:
        yield from (" " * indent + line for line in wrap(text, columns - indent))

    def labelled(key: str, text: Text) -> Iterator[str]:
        yield from lines(f"{word('heading', key)}: {_in(language, text)}", 4)

    def heading(key: str) -> Iterator[str]:
        yield from ("", word("heading", key))

    if view.missing:
        yield from lines(f"{view.missing.path}: {word('heading', 'missing')}", 0)
        yield from lines(_in(language, view.missing.reason), 4)
        if view.missing.nearest:
            yield from lines(f"{word('heading', 'nearest')}: {view.missing.nearest}", 4)
        return
    if view.name:
        yield from (*lines(view.name.path, 0), "")
    yield from lines(f"{view.entry.name}: {_in(language, view.entry.title)}", 0)
    calls = {call.path: call for call in view.entry.calls}
    for pair in view.pairs:
        yield from _show_pair(pair, calls, word, columns)
    yield from heading("differences")
    for item in view.differences:
        yield from lines(f"{item.id} ({word('kind', item.kind)})", 2)
        yield from lines(_in(language, item.text), 4)
        yield from labelled("why", item.reason)
    if view.faults:
        yield from heading("faults")
        yield from lines(", ".join(view.entry.pages), 2)
        for fault in view.faults:
            number = f" ({word('heading', 'fault')} {fault.number})" if fault.number else ""
            yield from lines(fault.id + number, 2)
            yield from labelled("page", fault.page)
            yield from labelled("software", fault.software)
            yield from lines(f"{word('heading', 'unisono')}: {word('side', fault.unisono)}", 4)
    if view.others:
        yield from heading("also")
        rows = [(call.path + call.signature, word("style", call.style)) for call in view.others]
        yield from table(rows, columns)
    paths = [path for pair in view.pairs for path in (pair.torch, pair.mindspore) if path]
    paths = list(dict.fromkeys([*paths, *(call.path for call in view.others)]))
    if paths:
        yield from heading("versions")
        for path in paths:
            if facts := "; ".join(_versions(calls[path], word)):
                yield from lines(f"{path}: {facts}", 2)
        checked = mapping.vocabulary()["checked"]
        releases = f"torch {checked['torch']}, MindSpore {checked['mindspore']}"
        yield from lines(f"{word('heading', 'checked')} {releases}", 2)
    if view.whole and view.entry.missing:
        yield from heading("missing")
        for lacking in view.entry.missing:
            near = f" ({word('heading', 'nearest')}: {lacking.nearest})" if lacking.nearest else ""
            yield from lines(lacking.path + near, 2)
            yield from lines(_in(language, lacking.reason), 4)


def _show_pair(pair: Pair, calls: dict[str, Call], word: _Word, columns: int) -> Iterator[str]:
    """Two calls side by side, then their parameters and their results."""
    sides = [_call_text(calls[path]) if path else "-" for path in (pair.torch, pair.mindspore)]
    yield ""
    yield from table([("torch", "MindSpore"), sides], columns, between=" | ", indent="")
    if pair.parameters:
        rows = [("torch", "MindSpore", word("heading", "role"), word("heading", "change"))]
        for row in pair.parameters:
            changes = [word("change", change) for change in row.changes]
            change = "; ".join(changes) or word("heading", "same")
            rows.append((row.torch or "-", row.mindspore or "-", word("role", row.role), change))
        yield from ("", word("heading", "parameters"))
        yield from table(rows, columns)
    outcomes = [(word("heading", "when"), "torch", "MindSpore")]
    for result in pair.results:
        when = f"{word('mode', result.mode)}, {word('rank', result.rank)}"
        outcomes.append((when, _outcome(result.torch, word), _outcome(result.mindspore, word)))
    yield from ("", word("heading", "results"))
    yield from table(outcomes, columns)


def _call_text(call: Call) -> str:
    """The call as one would write it, a parameter to a line."""
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


def _outcome(outcome: Outcome, word: _Word) -> str:
    parts = [word("returns", outcome.returns)]
    if outcome.error:
        parts = [f"{parts[0]} {outcome.error}"]
    if outcome.data or outcome.value:
        holder = outcome.data if outcome.data not in (None, "result") else ""
        value = word("value", outcome.value) if outcome.value else ""
        parts.append(": ".join(filter(None, (holder, value))))
    if outcome.shape:
        parts.append(outcome.shape)
    return "; ".join(filter(None, parts))


def _versions(call: Call, word: _Word) -> Iterator[str]:
    if call.since:
        yield f"{word('heading', 'since')} {call.since}"
    if call.deprecated:
        yield f"{word('heading', 'deprecated')} {call.deprecated}"
    if call.successor:
        yield f"{word('heading', 'successor')} {call.successor}"
