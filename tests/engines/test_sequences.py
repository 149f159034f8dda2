"""Random sequences of calls on several groups, checked call by call against the oracle."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers import cases, oracle
from tests.helpers.cases import Case
from unisono.core.groups import Group

LARGEST = 4
COUNTS = [0, 1, 2, 13, 1009, 66000]  # the last is over the chunk size for 4 bytes and more


@dataclass(frozen=True)
class Step:
    """One call on one of the groups: waited for immediately, or after all others have started."""

    group: int
    case: Case
    blocking: bool


@dataclass(frozen=True)
class Sequence:
    """What all ranks do: make these groups, take these steps, wait in this order."""

    size: int
    memberships: list[list[int]]
    steps: list[Step]
    backwards: bool


@st.composite
def sequences(draw: st.DrawFn) -> Sequence:
    size = draw(st.sampled_from([3, LARGEST]))
    members = st.lists(st.integers(0, size - 1), min_size=1, max_size=size, unique=True)
    memberships = draw(st.lists(members, max_size=3))
    groups = st.integers(0, len(memberships))
    steps = st.lists(st.builds(Step, groups, calls(), st.booleans()), min_size=1, max_size=14)
    return Sequence(size, memberships, draw(steps), draw(st.booleans()))


@st.composite
def calls(draw: st.DrawFn) -> Case:
    verb = draw(st.sampled_from([*cases.MOVES, *cases.REDUCTIONS, "barrier"]))
    dtype = draw(st.sampled_from(oracle.REDUCIBLE if verb in cases.REDUCTIONS else oracle.MOVABLE))
    case = Case(
        verb,
        dtype,
        draw(st.sampled_from(COUNTS)),
        root=draw(st.integers(0, LARGEST - 1)),
        in_place=draw(st.booleans()),
        salt=draw(st.integers(0, 50)),
    )
    if verb in cases.REDUCTIONS:
        case = replace(case, op=draw(st.sampled_from(oracle.operators(dtype))))
    if verb in cases.COUNTED and draw(st.booleans()):
        counts = tuple(draw(st.sampled_from(COUNTS)) for _ in range(LARGEST))
        # Uneven parts of all_to_all have no common place for what goes and what comes.
        case = replace(case, counts=counts, in_place=case.in_place and verb != "all_to_all")
    return case


def fitted(case: Case, size: int) -> Case:
    """The same call for a group that may be smaller than the largest."""
    counts = None if case.counts is None else case.counts[:size]
    return replace(case, root=case.root % size, counts=counts)


def perform(group: Group, sequence: Sequence) -> int:
    children = [group.split(members) for members in sequence.memberships]
    every = [group, *children]
    running = []
    done = 0
    for step in sequence.steps:
        target = every[step.group]
        if target.rank < 0:
            continue
        each = cases.start(target, fitted(step.case, target.size), step.blocking)
        done += 1
        if step.blocking:
            each.check()
        else:
            running.append(each)
    for each in reversed(running) if sequence.backwards else running:
        each.work.wait()
        each.check()
    for child in children:
        child.close()
    return done


def test_sequences(world, engine):
    # A process engine pays for each example with context switches, the threads hardly at all.
    examples = 60 if engine == "threads" else 25

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(sequences())
    def check(sequence: Sequence) -> None:
        done = world(sequence.size, perform, sequence)
        on_world = sum(step.group == 0 for step in sequence.steps)
        assert min(done) >= on_world

    check()
