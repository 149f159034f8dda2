"""Every function of both faces, with arguments that hypothesis draws: a part of `make fuzz`."""

from __future__ import annotations

import pytest

from tests.helpers.thorough import essential, essential_rows
from tests.long.fuzz.calls import Call, functions
from tests.long.fuzz.run import PLANS, Plan, Report, fuzz
from tests.long.fuzz.worlds import World

#: The seed makes the same cases in each run; `make fuzz` has 100,000 others.
SEED = 20_240_229


#: A world of one rank and one whose ranks differ for `make test`; then more cases of all worlds.
RUNS = [(PLANS[0], 150), (PLANS[-1], 150), *((plan, 750) for plan in PLANS)]


@pytest.mark.parametrize(
    ("plan", "cases"),
    essential_rows(2, RUNS),
    ids=[f"{plan.name}, part of {cases} cases" for plan, cases in RUNS],
)
def test_only_documented_errors(plan: Plan, cases: int) -> None:
    report = fuzz(cases, SEED, [plan])
    assert not report.bad, report.badness()
    assert report.cases >= cases * plan.share * 0.9
    assert sum(found["result"] for found in report.kinds.values()) > report.cases * 0.05


def test_every_function_is_there() -> None:
    names = set(functions())
    assert {"dist.all_reduce", "comm.init", "comm_func.recv", "ops.AllReduce"} <= names
    assert {"mint.all_to_all", "communication.set_comm_ops_inplace", "dist.P2POp"} <= names


# ---- the fuzz run sees what goes wrong -----------------------------------------------------------


def outcome(*calls: Call, kind: str = "shm") -> Report:
    with World(kind, len(calls), 0.2) as world:
        report = Report()
        report.note("here", calls, world.run(calls))
        for answer in world.check():
            assert not answer.get("bad"), answer
        return report


@pytest.mark.thorough
def test_a_crash_is_seen() -> None:
    report = outcome(Call("dist.all_gather_object", ["[None]", "os.kill(os.getpid(), 11)"]))
    assert [key[0] for key in report.bad] == ["crash"]
    assert "SIGSEGV" in report.badness() and "os.kill" in report.badness()


@pytest.mark.thorough
def test_an_undocumented_error_is_seen() -> None:
    surprise = "type('Group', (), {'__class__': property(lambda self: {}['nothing'])})()"
    report = outcome(Call("dist.all_reduce", ["np.ones(3)", f"group={surprise}"]))
    assert [key[0] for key in report.bad] == ["KeyError"], report.badness()


@pytest.mark.thorough
def test_a_right_call_is_a_result() -> None:
    call = Call("dist.all_reduce", ["np.ones(3)"])
    report = outcome(call, call)
    assert report.kinds["dist.all_reduce"] == {"result": 2}
    assert not report.bad


@pytest.mark.thorough
def test_different_calls_are_a_mismatch() -> None:
    report = outcome(
        Call("dist.all_reduce", ["np.ones(3)"]),
        Call("dist.all_reduce", ["np.ones(4)"]),
        kind="threads",
    )
    assert report.kinds["dist.all_reduce"] == {"MismatchError": 2}


# ---- what long runs have found -------------------------------------------------------------------

FOUND = [
    Call("dist.shrink_group", ["['sum']"]),
    Call("dist.shrink_group", ["[[]]"]),
    Call("dist.shrink_group", ["[]", "shrink_flags=np.ones(2)"]),
    Call("dist.new_group", ["[0]", "sort_ranks=np.ones(2)"]),
    Call("dist.all_reduce", ["np.ones(2)", "async_op=np.ones(2)"]),
    Call("dist.barrier", ["async_op=torch.ones(2)"]),
    Call("dist.P2POp", ["dist.isend", "np.ones(2)", "group_peer=n"]),
    Call("dist.P2POp", ["dist.isend", "np.ones(2)", "group_peer=-1"]),
    Call("dist.new_group", ["torch.zeros(1, dtype=torch.int64, device='meta')"]),
    Call("dist.broadcast", ["np.ones(2)", "torch.zeros((), dtype=torch.int64, device='meta')"]),
    Call("dist.new_group", ["[0]", "use_local_synchronization=torch.ones(2)"]),
    Call("dist.init_process_group", ["init_method=np.ones(2)"]),
    Call("ops.Broadcast", ["0"], ["cyclic()"]),
    Call("ops.BatchISendIRecv", ["['irecv']", "[0]", "[None]", "[np.float32]"], []),
    Call("communication.new_group", ["[0]", "backend=np.zeros((0, 3))"]),
    Call("communication.TCPStore", ["'\\0'", "0", "is_master=True", "timeout=timedelta(0)"]),
    Call("communication.TCPStore", ["'a' * 70", "0", "is_master=True", "timeout=timedelta(0)"]),
    Call("communication.set_comm_ops_inplace", ["True", "[np.ones((2, 2))]"]),
]


@pytest.mark.parametrize("kind", essential(1, ["shm", "none"]))
def test_found_by_long_runs(kind: str) -> None:
    with World(kind, 1, 0.2) as world:
        report = Report()
        for call in FOUND:
            report.note("here", [call], world.run([call]))
    assert not report.bad, report.badness()
    assert not any(found["result"] for found in report.kinds.values()), report.kinds
