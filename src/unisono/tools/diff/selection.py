"""Find what a name refers to in the mapping table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from unisono import mapping
from unisono.mapping import Difference, Entry, Pair, UpstreamCall

__all__ = ["Selection", "find", "names"]


@dataclasses.dataclass(frozen=True)
class Selection:
    """What a name refers to: an entry, and those of its pairs that the name is about."""

    entry: Entry
    pairs: tuple[Pair, ...]
    missing: mapping.Missing | None = None
    name: mapping.Name | None = None

    @property
    def whole(self) -> bool:
        """Tell whether the name refers to the whole entry."""
        return len(self.pairs) == len(self.entry.pairs)

    @property
    def differences(self) -> list[Difference]:
        """Return the differences of these pairs: those of the entry first, then shared ones."""
        shown = {pair.name for pair in self.pairs}
        wanted = {*_references(self.pairs), *_gradient_references(self.calls)}
        if self.name:
            wanted.add(self.name.difference)
        own = [
            item
            for item in self.entry.differences
            if shown & set(item.pairs) or item.id in wanted or (self.whole and not item.pairs)
        ]
        rest = [
            item for item in mapping.differences().values() if item.id in wanted and item not in own
        ]
        return own + rest

    @property
    def faults(self) -> list[mapping.Fault]:
        """Return the errors of the official pages about these pairs."""
        if not self.pairs:
            return []
        shown = {pair.name for pair in self.pairs}
        return [item for item in self.entry.faults if not item.pairs or shown & set(item.pairs)]

    @property
    def others(self) -> list[UpstreamCall]:
        """Return related calls outside the pairs: successors, primitives, other modules."""
        if not self.pairs:
            return []
        shown = {path for pair in self.pairs for path in (pair.torch, pair.mindspore)}
        names = {name for pair in self.pairs for name in _last_names(pair)}
        return [
            call
            for call in self.entry.calls
            if call.path not in shown and (self.whole or _related(call.name, names))
        ]

    @property
    def calls(self) -> list[UpstreamCall]:
        """Return all calls that the name is about: those of the pairs, then the others."""
        known = {call.path: call for call in self.entry.calls}
        paths = [path for pair in self.pairs for path in (pair.torch, pair.mindspore) if path]
        return [*(known[path] for path in dict.fromkeys(paths)), *self.others]

    @property
    def gradients(self) -> dict[str, list[str]]:
        """Return MindSpore's calls that have a gradient, by the key of their backward."""
        found: dict[str, list[str]] = {}
        for call in self.calls:
            if call.gradient and call.dialect == "mindspore":
                found.setdefault(call.gradient, []).append(call.path)
        return found


def names() -> list[str]:
    """List the names that `unisono diff` knows, without their module paths."""
    found = dict.fromkeys(mapping.load())
    for entry in mapping.load().values():
        found.update(dict.fromkeys(call.name for call in entry.calls))
        found.update(dict.fromkeys(named.path.rpartition(".")[2] for named in entry.names))
        found.update(dict.fromkeys(item.path.rpartition(".")[2] for item in entry.missing))
    return list(found)


def find(name: str) -> Selection | None:
    """Find an entry by its own name or by an upstream name, with any part of its path."""
    path = name.removeprefix("unisono.")
    if path.startswith("dist."):
        path = f"torch.distributed.{path.removeprefix('dist.')}"
    entries = mapping.load()
    if path in entries:
        return Selection(entries[path], entries[path].pairs)
    for entry in entries.values():
        found = {
            (call.alias_of or call.path).rpartition(".")[2]
            for call in entry.calls
            if f".{call.path}".endswith(f".{path}")
        }
        if found:
            pairs = tuple(pair for pair in entry.pairs if found & _last_names(pair))
            related = tuple(
                pair
                for pair in entry.pairs
                if any(_related(name, _last_names(pair)) for name in found)
            )
            return Selection(entry, pairs or related or entry.pairs)
        for named in entry.names:
            if f".{named.path}".endswith(f".{path}"):
                return Selection(entry, (), name=named)
        for item in entry.missing:
            if f".{item.path}".endswith(f".{path}"):
                return Selection(entry, (), item)
    return None


def _last_names(pair: Pair) -> set[str]:
    return {path.rpartition(".")[2] for path in (pair.torch, pair.mindspore) if path}


def _related(name: str, others: set[str]) -> bool:
    """Tell whether one name contains another, as AllReduce and all_reduce_coalesced do."""
    plain = name.replace("_", "").lower()
    bare = [other.replace("_", "").lower() for other in others]
    return any(plain in other or other in plain for other in bare)


def _references(pairs: tuple[Pair, ...]) -> Iterator[str]:
    """Yield the differences that rows refer to, or that their role or change refers to."""
    lists = mapping.vocabulary()
    for pair in pairs:
        for row in pair.parameters:
            given = [row.difference, lists["role"][row.role].get("difference")]
            given += [lists["change"][change].get("difference") for change in row.changes]
            yield from filter(None, given)
        yield from filter(None, (row.difference for row in pair.results))


def _gradient_references(calls: list[UpstreamCall]) -> Iterator[str]:
    """Yield the differences that the backwards of calls refer to."""
    backwards = mapping.vocabulary()["gradient"]
    for call in calls:
        if call.gradient and "difference" in backwards[call.gradient]:
            yield backwards[call.gradient]["difference"]
