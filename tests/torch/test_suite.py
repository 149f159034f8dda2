"""A representative part of PyTorch's own suite, on the backend "unisono"; and its runner.

All of it runs with `make torch-suite`.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's suite imports it")

from tests.torch.suite import known, runner
from tests.torch.suite.__main__ import main
from tests.torch.suite.runner import Outcome, Run

RANKS = 2

#: At least one of each kind, the one with the most cases where there are several. The suite does
#: not compare what its plain all_reduce tests get; those of all_reduce_coalesced do.
CHOSEN = [
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_all_gather",
    "test_all_gather_coalesced_with_empty",
    "test_all_gather_object_subgroup",
    "test_all_reduce_coalesced_sum",
    "test_all_reduce_sum_async",
    "test_all_to_all_full_group",
    "test_all_to_all_single_unequal_split_full_group",
    "test_barrier",
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_broadcast_full_group",
    "test_destroy_group",
    "test_gather_full_group",
    "test_get_future",
    "test_irecv",
    "test_reduce_product",
    "test_scatter_object_list",
    "test_send_recv_any_source",
    "test_send_recv_with_tag",
    "test_sparse_all_reduce_sum",
]

#: Under the patch, for gloo. It wants to see gloo's calls in a profiler where it compares values.
CHOSEN_FOR_GLOO = [
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_all_gather_object_default_pg",
    "test_all_to_all_full_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_barrier_timeout_full_group",
    "test_ddp_create_graph",
    "test_gather_full_group",
    "test_get_backend",
]

#: What each probe must end as, and a word of the reason.
PROBES = {
    "test_probe_everybody_is_content": ("passed", ""),
    "test_probe_rank_one_raises": ("failed", "rank 1 is not content"),
    "test_probe_rank_one_is_gone": ("failed", "rank 1 ended with 3"),
    "test_probe_rank_one_hangs": ("failed", "late: ranks"),
    "test_probe_rank_one_skips": ("failed", "rank 1 ended with 86"),
}


class OneTest:
    """In the place of `Run`: the suite has one test of CUDA tensors, and it passes."""

    def __init__(self, *given, **named):
        assert named["gpu"] and named["start"] == "spawn"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def tests(self):
        every = known.load("unisono").reasons
        return ["test_all_reduce_sum_cuda", *{test for test, _ in every}]

    def outcomes(self, chosen):
        return [Outcome(test, "passed", "", 0.0) for test in chosen]


def test_tests_of_cuda_tensors_are_not_counted_as_all_tests(monkeypatch, capsys):
    monkeypatch.setattr(runner, "Run", OneTest)
    assert main(["--gpu", "--world-size", "2"]) == 0
    assert "says" not in capsys.readouterr().out


def outcomes_of(run, tests):
    return {outcome.test: outcome for outcome in run.outcomes(tests)}


def not_passed(outcomes, tests):
    return {test: outcomes[test].detail for test in tests if outcomes[test].status != "passed"}


@pytest.mark.thorough
def test_of_the_suite_and_every_rank_counts():
    """One test, so that one worker of pytest-xdist has the run and no second repeats it."""
    # Probes has all tests of the suite as well.
    with Run("unisono", RANKS, jobs=2, suite="tests.torch.suite.probes:Probes") as run:
        outcomes = outcomes_of(run, [*PROBES, *CHOSEN])
    assert not_passed(outcomes, CHOSEN) == {}
    for probe, (status, word) in PROBES.items():
        assert outcomes[probe].status == status, outcomes[probe].detail
        assert word in outcomes[probe].detail


@pytest.mark.thorough
def test_of_the_suite_under_the_patch():
    with Run("gloo", RANKS, jobs=2, patch=True) as run:
        assert not_passed(outcomes_of(run, CHOSEN_FOR_GLOO), CHOSEN_FOR_GLOO) == {}


def complaints(*outcomes, everything=False):
    reasons = {("test_known", 2): "why"}
    return known.Known(reasons, {2: 2}).complaints(2, outcomes, everything)


def outcome(test, status):
    return Outcome(test, status, "", 0.0)


def test_what_is_as_known_needs_no_word():
    good, bad = outcome("test_good", "passed"), outcome("test_known", "failed")
    assert complaints(good, bad, outcome("test_cuda", "needs a GPU"), everything=True) == []


@pytest.mark.parametrize("status", ["passed", "needs a GPU", "another world size"])
def test_known_failure_that_does_not_fail(status):
    (complaint,) = complaints(outcome("test_known", status))
    assert "test_known is in known.toml, but" in complaint


def test_failure_that_is_not_known():
    (complaint,) = complaints(outcome("test_other", "failed"))
    assert "test_other fails" in complaint


def test_fewer_tests_than_known():
    (complaint,) = complaints(outcome("test_good", "passed"), everything=True)
    assert complaint == "1 tests ran, and known.toml says 2"


def test_entry_without_a_test():
    failures = known.load("unisono")
    names = {test for test, _ in failures.reasons}
    assert names
    assert failures.unknown_tests(names) == []
    assert len(failures.unknown_tests(names - {"test_monitored_barrier_gloo"})) == 1


def test_reason_is_required(tmp_path):
    path = tmp_path / "known.toml"
    entry = 'backend = "a"\ntests = ["t"]\nworld_sizes = [2]\nreason = " "'
    path.write_text(f"[tests_that_run]\n[[failure]]\n{entry}\n")
    with pytest.raises(ValueError, match="t has no reason"):
        known.load("a", path)


def command(*arguments):
    call = [sys.executable, "-m", "tests.torch.suite", "--world-size", str(RANKS), *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(call, env=environment, capture_output=True, text=True, timeout=100)


@pytest.mark.thorough
def test_command_counts():
    good, known_to_fail = "test_all_to_all_single_equal_split_complex", "test_all_to_all_complex"
    done = command("--backend", "gloo", "-k", good, "-k", known_to_fail)
    assert done.returncode == 0, done.stdout
    *_, row = done.stdout.splitlines()
    size, passed, failures, unexpected, *_ = row.split()
    assert (size, passed, failures, unexpected) == (str(RANKS), "1", "1", "0")


@pytest.mark.thorough
def test_command_says_what_is_wrong():
    nobody = command("--backend", "nobody", "--list")
    assert nobody.returncode == 2
    assert "torch knows no backend 'nobody'" in nobody.stderr
