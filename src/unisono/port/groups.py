"""On the way to MindSpore: how a program starts, its groups, and the roots and tags of calls."""

from __future__ import annotations

import ast

from unisono.port.flow import is_pure, may_be_none
from unisono.port.plan import Action, Plan
from unisono.port.rules import difference_text
from unisono.port.site import Refused, Site

__all__ = [
    "all_ranks",
    "check_root",
    "check_root_in_group",
    "check_tag",
    "end_group",
    "start",
    "why_same",
]

_COMM = "«mindspore.communication»"
#: What torch needs to start and MindSpore gets from its launcher.
_FROM_LAUNCHER = {"rank", "world_size", "init_method"}


def why_same(site: Site) -> str:
    """Return the reason for a call that changes in its names only, and what else is to say."""
    return "; ".join(["the same call with other names", *site.notes])


def check_root(site: Site) -> None:
    """Refuse calls that do not name their root, or name it inside the group."""
    for row in site.rule.rows:
        if row.role in ("root", "peer") and row.source and row.source not in site.given:
            if site.value("group_root") is None and row.difference != "send_recv.any-source":
                raise Refused(f"it does not say {row.source}", row.difference)
            difference = row.difference if site.value("group_root") is None else "groups.group-root"
            raise Refused(difference_text(difference), difference)


def check_root_in_group(site: Site) -> None:
    """Refuse reduce in a group: MindSpore gets the rank wrong there."""
    group = site.value("group")
    if site.rule.source.name == "reduce" and group is not None and not site.is_world(group):
        raise Refused(
            "in a group, MindSpore takes dst for a rank of the group, or mixes it up with one; "
            "all_reduce has no such trouble",
            "reduce.dst-in-group",
        )


def check_tag(site: Site) -> None:
    """Refuse tags: without them, messages that overtake each other are silently exchanged."""
    tag = site.value("tag")
    without = isinstance(tag, ast.Constant) and tag.value == 0
    if tag is not None and not without and site.rule.primitive is None:
        raise Refused(
            "MindSpore ignores the tag, and pairs messages by their order; leave the tag out if "
            "the order is the same on both sides",
            "send_recv.tag",
        )


def all_ranks(site: Site) -> dict[str, str]:
    """Say which ranks a new group of all has: without them, MindSpore answers with the world."""
    if site.rule.source.name != "new_group":
        return {}
    ranks = site.given.get("ranks", (None, ast.Constant(None)))[1]
    if not (isinstance(ranks, ast.Constant) and ranks.value is None):
        return {}
    site.notes.append("a group of its own, and not the world")
    size = f"{_COMM}.get_group_size()"
    if site.target.family == "mint":
        size = "«mindspore.mint.distributed».get_world_size()"
    return {"ranks": f"list(range({size}))"}


def end_group(site: Site) -> tuple[str, str, Plan]:
    """destroy_process_group: without a group it ends all, and in MindSpore that is release."""
    path, group = site.rule.target.path, site.value("group")
    assert group is not None
    if not may_be_none(group, site.file.scopes):
        return Action.REWRITE, why_same(site), Plan(path, site.arguments())
    if not is_pure(group):
        raise Refused("the group may be None, which ends all; give it a name first")
    text = site.text(group)
    ended = f"{{call}} if {text} is not None else {_COMM}.release()"
    if not isinstance(site.file.scopes.parents[site.call], ast.Expr):
        ended = f"({ended})"
    site.notes.append("release ends all, where there is no group")
    plan = Plan(path, site.arguments(group=text), values=((site.call, ended),))
    return Action.REWRITE, why_same(site), plan


def start(site: Site) -> tuple[str, str, Plan]:
    """init_process_group: MindSpore's launcher gives what torch takes as arguments."""
    for name in sorted(_FROM_LAUNCHER & set(site.given)):
        value = site.given[name][1]
        text = ast.unparse(value)
        by_launcher = "environ" in text or "getenv" in text or text in ("-1", "None", "'env://'")
        if not by_launcher:
            raise Refused(
                f"it passes {name}; MindSpore reads that from its launcher (msrun)", "groups.start"
            )
    left_out = [name for name in site.given if name != "backend"]
    notes = ["MindSpore chooses the backend by the device"]
    if left_out:
        notes.append(f"left out, because the launcher decides: {', '.join(left_out)}")
    site.differences += ["groups.backends", "groups.start"]
    return Action.REWRITE, "; ".join(notes), Plan(site.rule.target.path, ())
